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

// Nearest, ties to the even code, saturating at 6; the sign is kept on zero. NaN gives +6, as cvt.rn.satfinite does.
HD inline uint8_t float_to_e2m1(float f) {
  if (f != f) return 7u;
  const uint8_t sign = static_cast<uint8_t>(std::bit_cast<uint32_t>(f) >> 28 & 8u);
  const float a = f < 0 ? -f : f;
  const uint8_t code = a <= 0.25f   ? 0
                       : a < 0.75f  ? 1
                       : a <= 1.25f ? 2
                       : a < 1.75f  ? 3
                       : a <= 2.5f  ? 4
                       : a < 3.5f   ? 5
                       : a <= 5.0f  ? 6
                                    : 7;
  return static_cast<uint8_t>(sign | code);
}

}  // namespace sluice::format
