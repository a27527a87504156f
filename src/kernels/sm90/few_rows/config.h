// SPDX-License-Identifier: Apache-2.0
// Tiles of the product of few rows, its shared memory and its arguments.
#pragma once

#include "kernels/sm90/few_rows/heuristic.h"
#include "kernels/sm90/grouped_gemm/args.h"

namespace sluice::sm90 {

// y = x W^T + bias, with rows of x rounded as `round` says. Filled by DenseGemm::run_few_rows. All pointers are
// device memory, all strides are in elements.
struct FewRowsArgs {
  // The matrix [n, k].
  WeightArgs weights;     // one expert, not gated, in the layout of the grouped GEMM (layout.h)
  const float* bias;      // [n] float32; null: none
  int n, k;               // without padding
  int m_tiles, k_blocks;  // of its WeightShape
  int splits;             // parts of K, one per block of a cluster: few_rows_splits(), or 1 for deterministic sums
  int m_parts;            // tasks of an M-tile, with one part of K: few_rows_m_parts()

  // The rows of x.
  const void* x;     // [rows, k] in float32 if x_f32, else bfloat16; rows aligned to 16 bytes if k % 8 == 0
  int64_t x_stride;  // from row to row, at least k
  bool x_f32;
  Round round;              // to the input format of the products; one that rounds_to() knows for the operand
  const float* row_factor;  // [rows] decode factors of rows that come rounded; null: none
  const InputScale* scale;  // never null; all ones where the format has no calibrated scale
  int rows;                 // 1 to kMaxFewRows: the captured maximum
  const int32_t* num_rows;  // [1] rows that are computed, clamped to 0 .. rows; null: rows. y keeps what it had beyond

  // The result.
  void* y;           // [rows, n] in float32 if y_f32, else bfloat16
  int64_t y_stride;  // from row to row, at least n
  bool y_f32;
  bool y_wide;  // y is aligned to 8 bytes and y_stride is a multiple of 4: four bfloat16 results are stored at once
};

// kOp: operand. kRows: most rows of x. Statics have the names that the grouped GEMM's products read (multiply.cuh).
template <WeightOperand kOp, int kRows>
struct FewTile {
  static constexpr WeightOperand op = kOp;
  static constexpr int m_tiles = 1, max_n = kRows, step_n = 8, cluster = 1;
  static constexpr int k_blocks = k_blocks_per_copy(kOp);  // of a stage
  static constexpr bool tokens_first = false, completes_token_rows = false, block_scaled = sm90::block_scaled(kOp);
  static constexpr bool lanes_read = block_scaled || decodes(kOp);
  // Warps that bring rows of x. Rounding is a long chain of operations per value, so that three warps bounded the
  // kernel ([7168, 16384], NVFP4, 8 rows: 32.5 us with three, 30.3 with seven). Rows in BF16 are copied.
  static constexpr int blocks_per_sm = kFewRowsBlocks, x_warps = kOp == WeightOperand::bf16 ? 3 : 7;
  static constexpr int threads = (9 + x_warps) * 32;
  static constexpr int queue = 4, params_slots = 1;

  static constexpr int w_bytes = k_blocks * k_block_bytes(kOp), x_bytes = k_blocks * kRows * 128;
  static constexpr int w_aligned = (w_bytes + 1023) / 1024 * 1024;
  static constexpr int scale_bytes = block_scaled ? kRows * 4 + 16 : 0;
  static constexpr int stage_bytes = (w_aligned + x_bytes + scale_bytes + 1023) / 1024 * 1024;
  // Partial sums of 16 weight rows or more, of all parts of K, that a block adds.
  static constexpr int partial_bytes = 128 * kRows * 4, staging_bytes = partial_bytes;
  static constexpr int params_bytes = 96 + 512 + kRows * 8;
  static constexpr int maxima_bytes = kMaxFewRowsSplits * kRows * 4, divisors_bytes = x_warps * kRows * 4;
  static constexpr int fixed_bytes = staging_bytes + params_bytes + 512 + maxima_bytes + divisors_bytes;
  static constexpr int budget = 233472 / blocks_per_sm - 1024 - fixed_bytes;
  static constexpr int stages_fit = budget / stage_bytes;
  static constexpr int stages = stages_fit > 12 ? 12 : stages_fit;
  static constexpr int smem_bytes = stages * stage_bytes + fixed_bytes;
  static_assert(stages >= 2);
};

}  // namespace sluice::sm90
