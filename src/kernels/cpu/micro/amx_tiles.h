// SPDX-License-Identifier: Apache-2.0
// The shapes of the tile registers.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "kernels/cpu/micro/inline.h"

namespace sluice::kernels::cpu {
namespace {

struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

// Tile shapes for `rows` <= 32 rows of the left operand. Above 16, tiles 0, 1 (sums) and 4 (operand) take 16 of them,
// 2, 3 and 5 the others. Up to 16, each of these tiles takes all. 6 and 7 are the right operand. A tile instruction
// takes about as many cycles as it has rows, and absent rows are not read.
SLUICE_INLINE void configure(int rows) {
  TileConfig c;
  const int first = rows < 16 ? rows : 16, second = rows > 16 ? rows - 16 : rows;
  c.rows[0] = c.rows[1] = c.rows[4] = static_cast<uint8_t>(first);
  c.rows[2] = c.rows[3] = c.rows[5] = static_cast<uint8_t>(second);
  // Not _tile_loadconfig: GCC 12's declares only the first 8 bytes as read, and stores to the others were dropped.
  __asm__ volatile("ldtilecfg %0" : : "m"(c));
}

// GCC 12's tile loads do not declare that they read memory. This keeps earlier stores before them.
SLUICE_INLINE void before_tile_loads() { __asm__ volatile("" : : : "memory"); }

}  // namespace
}  // namespace sluice::kernels::cpu
