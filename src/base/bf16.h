// SPDX-License-Identifier: Apache-2.0
// bfloat16: 1 sign, 8 exponent, 7 mantissa bits; the upper half of a float.
#pragma once

#include <bit>
#include <cstdint>

#include "base/hd.h"

namespace sluice {

using bf16_t = uint16_t;  // the bits

HD inline float bf16_to_float(bf16_t b) { return std::bit_cast<float>(static_cast<uint32_t>(b) << 16); }

// Round to nearest, ties to even. NaN stays NaN (quiet), infinities stay.
HD inline bf16_t float_to_bf16(float f) {
  const uint32_t u = std::bit_cast<uint32_t>(f);
  if ((u & 0x7fffffffu) > 0x7f800000u) return static_cast<bf16_t>((u >> 16) | 0x40u);
  return static_cast<bf16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

HD inline float round_to_bf16(float f) { return bf16_to_float(float_to_bf16(f)); }

}  // namespace sluice
