// SPDX-License-Identifier: Apache-2.0
// IEEE 754 binary16 to float32, exactly. Not _Float16: clang has it for some processors only.
#pragma once

#include <bit>
#include <cstdint>

namespace sluice {

inline float f16_to_float(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16, exponent = bits >> 10 & 31u,
                 fraction = bits & 1023u;
  if (exponent == 0) {  // zero and subnormal: fraction * 2^-24
    const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(magnitude));
  }
  const uint32_t wide = exponent == 31 ? 255u : exponent + 112u;  // infinity and NaN keep their fraction
  return std::bit_cast<float>(sign | wide << 23 | fraction << 13);
}

}  // namespace sluice
