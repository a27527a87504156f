// SPDX-License-Identifier: Apache-2.0
// FP8 e4m3fn (OCP 8-bit floating point): bias 7, largest 448, no infinity, NaN = 0x7f / 0xff.
#pragma once

#include <bit>
#include <cstdint>

#include "base/hd.h"

namespace sluice::format {

inline constexpr float kE4m3Max = 448.0f;

HD inline float e4m3_to_float(uint8_t code) {
  const uint32_t sign = static_cast<uint32_t>(code & 0x80u) << 24;
  const uint32_t magnitude = code & 0x7fu;
  if (magnitude == 0x7fu) return std::bit_cast<float>(sign | 0x7fc00000u);
  if (magnitude < 8u) {  // subnormal: m * 2^-9
    const float value = static_cast<float>(magnitude) * 0.001953125f;
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(value));
  }
  return std::bit_cast<float>(sign | ((magnitude << 20) + (120u << 23)));
}

// Round to nearest even, saturating: beyond 448 and infinities give +-448. NaN gives NaN.
HD inline uint8_t float_to_e4m3(float f) {
  const uint32_t u = std::bit_cast<uint32_t>(f);
  const uint8_t sign = static_cast<uint8_t>((u >> 24) & 0x80u);
  const uint32_t a = u & 0x7fffffffu;
  if (a > 0x7f800000u) return static_cast<uint8_t>(sign | 0x7fu);
  if (a >= 0x43e00000u) return static_cast<uint8_t>(sign | 0x7eu);  // >= 448
  if (a < 0x3c800000u) {  // below 2^-6, the smallest normal: round to a multiple of 2^-9
    // Adding 2^14 places the last mantissa bit of the sum at 2^-9, so the sum is rounded there, to even.
    const float sum = std::bit_cast<float>(a) + 16384.0f;
    return static_cast<uint8_t>(sign | (std::bit_cast<uint32_t>(sum) - 0x46800000u));
  }
  const uint32_t rounded = a + 0x7ffffu + ((a >> 20) & 1u);  // 20 mantissa bits are dropped
  return static_cast<uint8_t>(sign | ((rounded >> 20) - (120u << 3)));
}

}  // namespace sluice::format
