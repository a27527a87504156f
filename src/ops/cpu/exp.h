// SPDX-License-Identifier: Apache-2.0
// exp in float32 without a branch or a table, so that loops around it vectorise (libm's does not without fast-math).
#pragma once

#include <bit>
#include <cstdint>

namespace sluice::ops::cpu {

// Within 2 ulp of exp(x) (tested against double); 0 below -87.33 (where the result would be subnormal), infinity above
// 88.72, NaN for NaN. Cody-Waite reduction by ln 2 in two parts, then the degree-6 polynomial of Cephes' expf.
inline float exp_float(float x) {
  const float kRound = 12582912.0f;  // 1.5 * 2^23: adding and subtracting it rounds to an integer
  // Selects, not std::clamp: NaN must fall through to the polynomial.
  const float low = -87.336544f, high = 88.722839f;
  float t = x < low ? low : x;
  t = t > high ? high : t;
  const float shifted = t * 1.44269504088896341f + kRound;
  const float n = shifted - kRound;
  const float r = (t - n * 0.693359375f) - n * -2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  // 2^n in two factors: n = 128 has no float of its own.
  const int32_t k = std::bit_cast<int32_t>(shifted) - std::bit_cast<int32_t>(kRound);
  const int32_t half = k >> 1;
  const float a = std::bit_cast<float>((half + 127) << 23);
  const float b = std::bit_cast<float>((k - half + 127) << 23);
  float y = p * a * b;
  y = x < low ? 0.0f : y;
  return x > high ? __builtin_inff() : y;
}

}  // namespace sluice::ops::cpu
