// SPDX-License-Identifier: Apache-2.0
// Tiles of the product of few rows, its shared memory and its arguments.
#pragma once

#include "kernels/sm90/few_rows/heuristic.h"
#include "kernels/sm90/grouped_gemm/args.h"

namespace sluice::sm90 {

struct FewRowsArgs {
  WeightArgs weights;  // of one matrix, in the layout of the grouped GEMM
  const float* bias;   // [n] or null
  int n, k;            // of the matrix
  int m_tiles, k_blocks;
  int splits;               // parts of K, one per block of a cluster
  const void* x;            // [rows, k], rows aligned to 16 bytes if k is a multiple of 8
  int64_t x_stride;         // elements
  bool x_f32;               // else bf16
  Round round;              // to the format of the products
  const InputScale* scale;  // never null
  int rows;                 // at most the tile's
  const int32_t* num_rows;  // device, or null
  void* y;                  // [rows, n]
  int64_t y_stride;
  bool y_f32, y_wide;  // y_wide: rows are aligned to 8 bytes
};

// kOp: operand. kRows: most rows of x. Statics have the names that the grouped GEMM's products read (multiply.cuh).
template <WeightOperand kOp, int kRows>
struct FewTile {
  static constexpr WeightOperand op = kOp;
  static constexpr int m_tiles = 1, max_n = kRows, step_n = 8, cluster = 1;
  static constexpr int k_blocks = k_blocks_per_copy(kOp);  // of a stage
  static constexpr bool tokens_first = false, completes_token_rows = false, block_scaled = sm90::block_scaled(kOp);
  static constexpr bool lanes_read = block_scaled || decodes(kOp);
  static constexpr int blocks_per_sm = kFewRowsBlocks, threads = 384, x_warps = 3;
  static constexpr int queue = 4, params_slots = 1;

  static constexpr int w_bytes = k_blocks * k_block_bytes(kOp), x_bytes = k_blocks * kRows * 128;
  static constexpr int w_aligned = (w_bytes + 1023) / 1024 * 1024;
  static constexpr int scale_bytes = block_scaled ? kRows * 4 + 16 : 0;
  static constexpr int stage_bytes = (w_aligned + x_bytes + scale_bytes + 1023) / 1024 * 1024;
  // Partial sums of 16 weight rows or more, of all parts of K, that a block adds.
  static constexpr int partial_bytes = 128 * kRows * 4, staging_bytes = partial_bytes;
  static constexpr int params_bytes = 96 + 512 + kRows * 8;
  static constexpr int maxima_bytes = kMaxFewRowsSplits * kRows * 4, globals_bytes = x_warps * kRows * 8;
  static constexpr int fixed_bytes = staging_bytes + params_bytes + 512 + maxima_bytes + globals_bytes;
  static constexpr int budget = 233472 / blocks_per_sm - 1024 - fixed_bytes;
  static constexpr int stages_fit = budget / stage_bytes;
  static constexpr int stages = stages_fit > 12 ? 12 : stages_fit;
  static constexpr int smem_bytes = stages * stage_bytes + fixed_bytes;
  static_assert(stages >= 2);
};

}  // namespace sluice::sm90
