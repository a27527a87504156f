// SPDX-License-Identifier: Apache-2.0
// UE8M0: a power of two, byte b = 2^(b-127). 255 is NaN. Byte 0 reads as ZERO: the format says 2^-127, but every
// implementation that published these checkpoints reads it as 0 (docs/numerics.md, Element formats).
#pragma once

#include <bit>
#include <cstdint>

#include "base/hd.h"

namespace sluice::format {

HD inline float e8m0_to_float(uint8_t b) {
  if (b == 255u) return std::bit_cast<float>(0x7fc00000u);
  return std::bit_cast<float>(static_cast<uint32_t>(b) << 23);  // b == 0 gives +0
}

// The smallest power of two >= f, for f >= 0; 0 and everything up to 2^-127 give byte 0; saturates at 254 (2^127).
HD inline uint8_t float_to_e8m0_up(float f) {
  const uint32_t u = std::bit_cast<uint32_t>(f) & 0x7fffffffu;
  if (u > 0x7f800000u) return 255u;
  const uint32_t exponent = u >> 23;
  if (exponent >= 254u) return 254u;
  if (exponent == 0) return u > 0x400000u ? 1u : 0u;  // subnormal floats: 2^-126 covers (2^-127, 2^-126)
  return static_cast<uint8_t>(exponent + ((u & 0x7fffffu) != 0 ? 1u : 0u));
}

}  // namespace sluice::format
