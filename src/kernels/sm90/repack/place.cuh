// SPDX-License-Identifier: Apache-2.0
// The inverse of the decoder's expansion (operand.cuh): codes of rows r and r + 8 to the words of the four lanes that
// hold them. Bits move for all four lanes at once, a byte each; then bytes change places.
#pragma once

#include <cstdint>

#include "kernels/ptx/bf16x2.cuh"

namespace sluice::sm90 {

// Words of bytes 0..3 of low and high halves to a word per lane: lane i's is low.i, high.i of `even`, then of `odd`.
__device__ inline void halves_to_lanes(uint32_t even_low, uint32_t even_high, uint32_t odd_low, uint32_t odd_high,
                                       uint32_t (&lane)[4]) {
  const uint32_t even01 = ptx::prmt(even_low, even_high, 0x5140u), even23 = ptx::prmt(even_low, even_high, 0x7362u);
  const uint32_t odd01 = ptx::prmt(odd_low, odd_high, 0x5140u), odd23 = ptx::prmt(odd_low, odd_high, 0x7362u);
  lane[0] = ptx::prmt(even01, odd01, 0x5410u);
  lane[1] = ptx::prmt(even01, odd01, 0x7632u);
  lane[2] = ptx::prmt(even23, odd23, 0x5410u);
  lane[3] = ptx::prmt(even23, odd23, 0x7632u);
}

// e2m1, a step of 16 columns: low0 and high0 are columns 0 to 7 of rows r and r + 8, low1 and high1 columns 8 to 15.
__device__ inline void place_e2m1(uint32_t low0, uint32_t high0, uint32_t low1, uint32_t high1, uint32_t (&lane)[4]) {
  constexpr uint32_t kLow = 0x0f0f0f0fu;
  // A byte of these: an even (odd) column of row r in its lower half, of row r + 8 in its upper.
  const uint32_t even0 = (low0 & kLow) | ((high0 << 4) & ~kLow), odd0 = ((low0 >> 4) & kLow) | (high0 & ~kLow);
  const uint32_t even1 = (low1 & kLow) | ((high1 << 4) & ~kLow), odd1 = ((low1 >> 4) & kLow) | (high1 & ~kLow);
  // What expand_e2m1 takes from where: registers 0 and 1 are of `first`, 2 and 3 of `second`; register 2's sign is the
  // other half's.
  const auto low_byte = [](uint32_t first, uint32_t second, uint32_t other) {
    return (first & 0x77777777u) | (other & 0x08080808u) | ((second << 2) & 0x80808080u);
  };
  const auto high_byte = [](uint32_t first, uint32_t second) {
    return (second & 0x80808080u) | ((second << 2) & 0x5c5c5c5cu) | ((first >> 2) & 0x22222222u) |
           ((second >> 6) & 0x01010101u);
  };
  halves_to_lanes(low_byte(even0, even1, odd1), high_byte(even0, even1), low_byte(odd0, odd1, even1),
                  high_byte(odd0, odd1), lane);
}

// e4m3, four columns: those of row r and of row r + 8 to one of the two words of a step, for two lanes.
__device__ inline void place_e4m3(uint32_t low, uint32_t high, uint32_t& lane0, uint32_t& lane1) {
  const uint32_t low_byte = ((low << 4) & 0xf0f0f0f0u) | (high & 0x0f0f0f0fu);
  const uint32_t high_byte =
      (low & 0x80808080u) | ((low >> 4) & 0x07070707u) | (high & 0x70707070u) | ((high >> 4) & 0x08080808u);
  lane0 = ptx::prmt(low_byte, high_byte, 0x5140u);
  lane1 = ptx::prmt(low_byte, high_byte, 0x7362u);
}

}  // namespace sluice::sm90
