// SPDX-License-Identifier: Apache-2.0
// exp in float32 without a branch or a table, so that loops around it vectorise (libm's does not without fast-math).
#pragma once

#include <bit>
#include <cstdint>

namespace sluice::ops::cpu {

inline constexpr float kExpLow = -87.336544f, kExpHigh = 88.722839f;  // beyond them exp is 0 and infinity here
inline constexpr float kExpRound = 12582912.0f;  // 1.5 * 2^23: adding and subtracting it rounds to an integer

// exp(t) = p * 2^n for t from kExpLow to kExpHigh; `shifted` is kExpRound + n, so its low bits are n. Cody-Waite
// reduction by ln 2 in two parts, then the degree-6 polynomial of Cephes' expf. F: float, or a vector of them.
template <class F>
inline __attribute__((always_inline)) void exp_parts(const F& t, F& p, F& shifted) {
  shifted = t * 1.44269504088896341f + kExpRound;
  const F n = shifted - kExpRound;
  const F r = (t - n * 0.693359375f) - n * -2.12194440e-4f;
  p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
}

// Within 2 ulp of exp(x) (tested against double); 0 below -87.33 (where the result would be subnormal), infinity above
// 88.72, NaN for NaN.
inline float exp_float(float x) {
  // Selects, not std::clamp: NaN must fall through to the polynomial.
  float t = x < kExpLow ? kExpLow : x;
  t = t > kExpHigh ? kExpHigh : t;
  float p, shifted;
  exp_parts(t, p, shifted);
  // 2^n in two factors: n = 128 has no float of its own.
  const int32_t k = std::bit_cast<int32_t>(shifted) - std::bit_cast<int32_t>(kExpRound);
  const int32_t half = k >> 1;
  const float a = std::bit_cast<float>((half + 127) << 23);
  const float b = std::bit_cast<float>((k - half + 127) << 23);
  float y = p * a * b;
  y = x < kExpLow ? 0.0f : y;
  return x > kExpHigh ? __builtin_inff() : y;
}

}  // namespace sluice::ops::cpu
