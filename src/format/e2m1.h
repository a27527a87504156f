// SPDX-License-Identifier: Apache-2.0
// FP4 e2m1: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives; two in a byte, the even index in the low nibble.
#pragma once

#include <bit>
#include <cstdint>

#include "base/hd.h"

namespace sluice::format {

inline constexpr float kE2m1Max = 6.0f;

HD inline float e2m1_to_float(uint8_t code) {
  const uint32_t m = code & 7u;
  const float magnitude = m < 2u   ? 0.5f * static_cast<float>(m)
                          : m < 4u ? 0.5f * static_cast<float>(m)
                          : m < 6u ? static_cast<float>(m - 2u)
                                   : static_cast<float>(2u * m - 8u);
  return (code & 8u) ? -magnitude : magnitude;
}

// Nearest, ties to the even code, saturating at 6; the sign is kept on zero. NaN gives +6, as cvt.rn.satfinite does. A
// sum of comparisons, for loops that the compiler makes vectors of: as a chain of choices it takes four times as long.
HD inline uint8_t float_to_e2m1(float f) {
  const uint32_t bits = std::bit_cast<uint32_t>(f), sign = bits >> 28 & 8u;
  const float a = std::bit_cast<float>(bits & 0x7fffffffu);
  const int code = (a > 0.25f) + (a >= 0.75f) + (a > 1.25f) + (a >= 1.75f) + (a > 2.5f) + (a >= 3.5f) + (a > 5.0f);
  return static_cast<uint8_t>(a != a ? 7u : sign | static_cast<uint32_t>(code));
}

}  // namespace sluice::format
