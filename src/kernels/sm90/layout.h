// SPDX-License-Identifier: Apache-2.0
// The two layouts that the grouped GEMM streams: repacked weights and rows. Every stage of its pipeline is one
// contiguous copy, so neither needs a tensor map, an index or a bounds check in the inner loop.
//
// K is cut into k-blocks of 64 columns (128 for FP8 tensor cores): 128 bytes of a row, one swizzle atom wide.
// Weights: [expert][M-tile of 128 rows][k-block][k_block_bytes]. An M-tile of a gated layer holds 64 columns of I: of
//   every 16 rows the first 8 are `up`, the last 8 the `gate` of the same columns. So both meet in the accumulators of
//   one thread.
// Rows:    [tile][k-block][padded rows][128 bytes], swizzled. A tile is at most max_n rows of one expert.
#pragma once

#include <cstdint>

#include "base/hd.h"
#include "base/math.h"

namespace sluice::sm90 {

// How weights lie in shared memory, and what the tensor cores read.
enum class WeightOperand : uint8_t {
  bf16,       // straight from shared memory
  fp8,        // e4m3 x e4m3, partial sums promoted every 128 of K
  fp8_block,  // the same, scaled by the block's two scales on promotion
  mxfp8,      // decoded in registers to bf16: e4m3 * 2^k is exact there
  nvfp4,      // decoded in registers to bf16: e2m1 * e4m3 is exact there
  mxfp4,
  fp8_f32,        // fp8 with sums in float32: decoded as mxfp8 with k = 0
  fp8_block_f32,  // fp8_block likewise
};

HD constexpr bool is_fp8(WeightOperand o) { return o == WeightOperand::fp8 || o == WeightOperand::fp8_block; }

HD constexpr bool decodes_e4m3(WeightOperand o) {
  return o == WeightOperand::mxfp8 || o == WeightOperand::fp8_f32 || o == WeightOperand::fp8_block_f32;
}

HD constexpr bool decodes(WeightOperand o) {
  return decodes_e4m3(o) || o == WeightOperand::nvfp4 || o == WeightOperand::mxfp4;
}

HD constexpr bool block_scaled(WeightOperand o) {
  return o == WeightOperand::fp8_block || o == WeightOperand::fp8_block_f32;
}

inline constexpr int kMTileRows = 128;
HD constexpr bool has_row_scale(WeightOperand o) { return o != WeightOperand::bf16 && !block_scaled(o); }
// Whether all tiles can read rows that are not in the rows layout: a stage is one k-block without scales of columns.
HD constexpr bool reads_in_place(WeightOperand o) { return o == WeightOperand::bf16 || o == WeightOperand::fp8; }
HD constexpr int k_block_columns(WeightOperand o) { return is_fp8(o) ? 128 : 64; }
// How many k-blocks share a pair of block scales (128 columns), and how many pairs `k_blocks` k-blocks need.
HD constexpr int k_blocks_per_scale(WeightOperand o) { return block_scaled(o) ? 128 / k_block_columns(o) : 1; }
HD constexpr int scale_runs(WeightOperand o, int k_blocks) {
  return (k_blocks + k_blocks_per_scale(o) - 1) / k_blocks_per_scale(o);
}
// Bytes of a k-block of 128 rows: codes, then block scales of a byte each if the operand has them. The scales of rows r
// and r + 8 of 16 lie together: for every group in turn that of row r and that of row r + 8 (operand.cuh).
HD constexpr int k_block_code_bytes(WeightOperand o) {
  return decodes_e4m3(o) ? 8192 : o == WeightOperand::nvfp4 || o == WeightOperand::mxfp4 ? 4096 : 16384;
}
HD constexpr int k_block_bytes(WeightOperand o) {
  return k_block_code_bytes(o) + (o == WeightOperand::nvfp4 ? 512 : decodes(o) ? 256 : 0);
}

// Whether tasks of tiles of up to `max_n` rows take turns (grouped_gemm/task.cuh): wide tiles, of which an expert has
// several.
HD constexpr bool takes_turns(int max_n) { return max_n >= 128; }
// Whether tokens are the M side of the products in tiles of up to `max_n` rows (tokens_first.cuh).
HD constexpr bool tokens_first(WeightOperand o, int max_n) { return o == WeightOperand::fp8_block && max_n == 128; }
// What the number of a tile's rows is rounded up to in memory.
HD constexpr int step_of(WeightOperand o, int max_n) { return tokens_first(o, max_n) ? 64 : max_n <= 64 ? 8 : 16; }

// Whether the block that completes a tile may round its rows to NVFP4 per token (epilogue_params.cuh), and for rows of
// up to how many columns. One warp does it, row after row, 16 bytes per lane.
HD constexpr bool completes_token_rows(WeightOperand o, int max_n) { return o == WeightOperand::nvfp4 && max_n <= 32; }
inline constexpr int kCompletedColumns = 256;

// Where 16-byte piece `piece` (0..7) of row `row` lies inside a k-block of swizzled rows.
HD constexpr uint32_t swizzled(uint32_t row, uint32_t piece) { return row * 128u + ((piece ^ (row & 7u)) << 4); }

// Row r of a gated tile: which column of the tile's 64, and whether it is the gate's.
HD constexpr int gated_column(int r) { return (r >> 4) * 8 + (r & 7); }
HD constexpr bool is_gate(int r) { return (r & 8) != 0; }

// One weight matrix [rows, k] (or pair of matrices when gated) of every local expert.
struct WeightShape {
  WeightOperand operand = WeightOperand::bf16;
  int64_t experts = 0, rows = 0, k = 0;
  bool gated = false;
  int64_t min_m_tiles = 0;  // more than `rows` ask for, if the k-blocks of the next GEMM are wider
  HD int k_blocks() const { return static_cast<int>(ceil_div<int64_t>(k, k_block_columns(operand))); }
  HD int m_tiles() const {
    const int64_t tiles = ceil_div<int64_t>(rows, gated ? kMTileRows / 2 : kMTileRows);
    return static_cast<int>(tiles > min_m_tiles ? tiles : min_m_tiles);
  }
  HD int64_t bytes() const { return experts * m_tiles() * k_blocks() * k_block_bytes(operand); }
  HD int64_t row_scales() const { return experts * m_tiles() * kMTileRows; }
  HD int64_t block_scales() const {
    return block_scaled(operand) ? experts * m_tiles() * scale_runs(operand, k_blocks()) * 4 : 0;
  }
};

// The tokens of a call: `num_tokens` in device memory, whatever it holds, within the captured maximum.
HD inline int64_t tokens_within(int64_t n, int64_t most) { return n < 0 ? 0 : n < most ? n : most; }
HD inline int64_t real_tokens(const int32_t* num_tokens, int64_t most) {
  return num_tokens == nullptr ? most : tokens_within(*num_tokens, most);
}

// A part of one block of memory.
struct Span {
  int64_t offset = 0, bytes = 0;
};
// Where a repacked matrix lies: WeightShape's bytes(), row_scales() and block_scales() as float32, where it has them.
struct MatrixMemory {
  Span weights, row_scale, block_scale;
};

// A tile of rows: `count` rows of one expert, which are multiplied by its weights together. In memory it has `padded`
// rows from row `row_base` on.
struct RowTile {
  int expert, row_base, count, padded;
};

// Written by one kernel for the next ones.
struct Header {
  int num_tiles, total_rows, ticket[2];
};

}  // namespace sluice::sm90
