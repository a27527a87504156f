// SPDX-License-Identifier: Apache-2.0
// The two layouts that the grouped GEMM streams: prepared weights and rows. Every stage of its pipeline is one
// contiguous copy, so neither needs a tensor map, an index or a bounds check in the inner loop.
//
// K is cut into slabs of 64 columns (128 for FP8 tensor cores): 128 bytes of a row, one swizzle atom wide.
// Weights: [expert][row tile of 128][slab][slab_bytes]. A gated tile holds 64 columns of I: of every 16 rows the first
//   8 are `up`, the last 8 `gate` of the same columns, so both meet in one thread's accumulators.
// Rows:    [tile][slab][padded rows][128 bytes], swizzled; a tile is at most N rows of one expert.
#pragma once

#include <cstdint>

#include "base/hd.h"
#include "base/math.h"

namespace sluice::sm90 {

// How weights lie in shared memory and meet the tensor cores.
enum class Operand : uint8_t {
  bf16,       // straight from shared memory
  fp8,        // e4m3 x e4m3, partial sums promoted every 128 of K
  fp8_block,  // the same, scaled by the block's two scales on promotion
  mxfp8,      // decoded in registers to bf16: e4m3 * 2^k is exact there
  nvfp4,      // decoded in registers to bf16: e2m1 * e4m3 is exact there
  mxfp4,
  fp8_f32,        // fp8 with sums in float32: decoded as mxfp8 with k = 0
  fp8_block_f32,  // fp8_block likewise
};

HD constexpr bool is_fp8(Operand o) { return o == Operand::fp8 || o == Operand::fp8_block; }

HD constexpr bool decodes_e4m3(Operand o) {
  return o == Operand::mxfp8 || o == Operand::fp8_f32 || o == Operand::fp8_block_f32;
}

HD constexpr bool decodes(Operand o) { return decodes_e4m3(o) || o == Operand::nvfp4 || o == Operand::mxfp4; }

HD constexpr bool block_scaled(Operand o) { return o == Operand::fp8_block || o == Operand::fp8_block_f32; }

inline constexpr int kTileRows = 128;
HD constexpr int slab_k(Operand o) { return is_fp8(o) ? 128 : 64; }
// Slabs that share a pair of block scales, 128 columns, and how many such runs `slabs` are.
HD constexpr int slabs_a_scale(Operand o) { return block_scaled(o) ? 128 / slab_k(o) : 1; }
HD constexpr int scale_runs(Operand o, int slabs) { return (slabs + slabs_a_scale(o) - 1) / slabs_a_scale(o); }
// Of 128 rows: codes, then block scales where the operand has them, a byte each: rows r and r + 8 of 16 lie together,
// the one's and the other's of every group in turn (operand.cuh).
HD constexpr int slab_code_bytes(Operand o) {
  return decodes_e4m3(o) ? 8192 : o == Operand::nvfp4 || o == Operand::mxfp4 ? 4096 : 16384;
}
HD constexpr int slab_bytes(Operand o) {
  return slab_code_bytes(o) + (o == Operand::nvfp4 ? 512 : decodes(o) ? 256 : 0);
}

// Whether tokens are the M side of the products in tiles of up to `max_n` rows (tokens_first.cuh), and what the memory
// of a tile's rows is rounded up to.
HD constexpr bool tokens_first(Operand o, int max_n) { return o == Operand::fp8_block && max_n == 128; }
HD constexpr int step_of(Operand o, int max_n) { return tokens_first(o, max_n) ? 64 : max_n <= 64 ? 8 : 16; }

// Whether a tile's rows may be rounded to NVFP4 per token by the block that completes them (brief.cuh), and rows of how
// many columns are: one warp does it, 16 bytes a lane, row after row.
HD constexpr bool completes_token_rows(Operand o, int max_n) { return o == Operand::nvfp4 && max_n <= 32; }
inline constexpr int kCompletedColumns = 256;

// Where 16-byte piece `piece` (0..7) of row `row` lies inside a slab of swizzled rows.
HD constexpr uint32_t swizzled(uint32_t row, uint32_t piece) { return row * 128u + ((piece ^ (row & 7u)) << 4); }

// Row r of a gated tile: which column of the tile's 64, and whether it is the gate's.
HD constexpr int gated_column(int r) { return (r >> 4) * 8 + (r & 7); }
HD constexpr bool is_gate(int r) { return (r & 8) != 0; }

// One weight matrix [rows, k] (or pair of matrices when gated) of every local expert.
struct WeightShape {
  Operand operand = Operand::bf16;
  int64_t experts = 0, rows = 0, k = 0;
  bool gated = false;
  int64_t min_row_tiles = 0;  // more tiles than rows ask for, where the next GEMM's slabs are wider
  HD int slabs() const { return static_cast<int>(ceil_div<int64_t>(k, slab_k(operand))); }
  HD int row_tiles() const {
    const int64_t tiles = ceil_div<int64_t>(rows, gated ? kTileRows / 2 : kTileRows);
    return static_cast<int>(tiles > min_row_tiles ? tiles : min_row_tiles);
  }
  HD int64_t bytes() const { return experts * row_tiles() * slabs() * slab_bytes(operand); }
  HD int64_t row_scales() const { return experts * row_tiles() * kTileRows; }
  HD int64_t block_scales() const {
    return block_scaled(operand) ? experts * row_tiles() * scale_runs(operand, slabs()) * 4 : 0;
  }
};

// At most `count` rows of one expert, processed in one pass over its weights.
struct Tile {
  int expert, row_base, count, padded;
};

// Written by the device for the device.
struct Header {
  int num_tiles, total_rows, ticket[2], done;
};

}  // namespace sluice::sm90
