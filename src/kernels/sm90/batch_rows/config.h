// SPDX-License-Identifier: Apache-2.0
// Tiles of the product of a batch of rows, its shared memory and its arguments.
#pragma once

#include <algorithm>

#include "kernels/sm90/batch_rows/heuristic.h"
#include "kernels/sm90/grouped_gemm/args.h"
#include "kernels/sm90/rows_map/rows_map.h"

namespace sluice::sm90 {

// y = x W^T + bias for rows of x that are rounded already. Filled by DenseGemm::run_batch_rows. All pointers are device
// memory.
struct BatchRowsArgs {
  // The rows of x [rows, k] in bfloat16 or as e4m3 codes; boxes of 128 bytes of a tile's rows.
  TensorMap x;

  // The matrix [n, k].
  WeightArgs weights;      // one expert, not gated, in the layout of the grouped GEMM (layout.h)
  const float* bias;       // [n] float32; null: none
  int n, k;                // without padding
  int m_tiles, k_blocks;   // of its WeightShape
  int parts;               // of K, one per block of a cluster: BatchRowsChoice::parts
  int m_parts;             // tasks of an M-tile: BatchRowsChoice::m_parts
  uint32_t parts_inverse;  // x / parts is x * parts_inverse >> 16 for x up to parts times the rows of a tile
  // Of a chain: its ChainRing. Filled by the launch.
  int stages, w_share, beyond;

  // The rows of a call.
  int row_tiles;            // of BatchRowsChoice::tile rows each, the last one partly used
  int rows;                 // 1 or more: the captured maximum
  const int32_t* num_rows;  // [1] rows that are computed, clamped to 0 .. rows; null: rows. y keeps what it had beyond
  const float* row_factor;  // [rows] decode factors; null: 1
  const InputScale* scale;  // never null; its factor multiplies all rows
  // FP8 block: the decode factor of 128 columns of a row, at row * x_scale_row + run * x_scale_run.
  const float* x_scale;
  int x_scale_row, x_scale_run;

  // The result.
  void* y;           // [rows, n] in float32 if y_f32, else bfloat16
  int64_t y_stride;  // from row to row in elements, at least n
  bool y_f32;
  bool y_wide;  // n % 8 == 0, y is aligned to four results and y_stride a multiple of 4: four are stored at once
};

// Float32 sums of a row of x by 128 weight rows in shared memory, padded against bank conflicts.
inline constexpr int kSumPitch = 128 * 4 + 16;

// kOp: operand. kRows: rows of x of a tile. kBlocks: blocks per multiprocessor.
template <WeightOperand kOp, int kRows, int kBlocks>
struct BatchTile {
  static constexpr WeightOperand op = kOp;
  static constexpr int rows = kRows, blocks_per_sm = kBlocks;
  // One block per multiprocessor hands registers from the streaming warps to the others, which warpgroups do as a
  // whole.
  static constexpr bool moves_registers = blocks_per_sm == 1;
  static constexpr int threads = moves_registers ? 384 : 320;
  // A stage of weights is one copy, a stage of x one k-block. They have rings of their own, since weights are
  // fetched before x may be read.
  static constexpr int w_k_blocks = k_blocks_per_copy(kOp);
  static constexpr int w_bytes = w_k_blocks * k_block_bytes(kOp);
  static constexpr int x_stage = kRows * 128;
  static constexpr int scale_stage = scale_floats(kOp, kRows);  // float32, beside a stage of x
  // Stages of x hide the way from the L2 cache: with four, a k-block of 32 rows takes 0.21 us whatever the weights (K =
  // 4096, 8 rows: 13.6 us, 13.1 with eight). Where two blocks share a multiprocessor, whole M-tiles need the room for
  // weights (one part of K = 2048, 32 rows: 11.3 us with four and six of weights, 11.8 with eight and five), but for
  // packed ones ([7168, 16384], NVFP4, 32 rows: 33.9 us with four, 32.7 with eight).
  HD static constexpr int x_stages(int m_parts) {
    if (blocks_per_sm == 1) return kRows == 64 ? 8 : kRows == 128 ? 6 : 4;
    const bool room = m_parts > 1 || (decodes(kOp) && kRows == 32);
    return !room ? 4 : kRows == 32 ? 8 : 6;
  }
  // Barriers, factors of rows, scales.
  static constexpr int fixed_bytes = 512 + kRows * 4 + std::max(x_stages(1), x_stages(2)) * scale_stage * 4;
  static constexpr int budget = (blocks_per_sm == 1 ? 232448 : 233472 / blocks_per_sm - 1024) - fixed_bytes;
  // A part of an M-tile has smaller stages of weights, and more of them.
  HD static constexpr int w_stage(int m_parts) {
    const int whole = (w_bytes + 1023) / 1024 * 1024;
    return cuts_m_tiles(kOp) ? whole / m_parts : whole;
  }
  static constexpr int most_w_stages = cuts_m_tiles(kOp) ? 20 : 12, most_x_stages = 8;
  // The tensor cores read 64 weight rows from the last stage as well.
  HD static constexpr int beyond(int m_parts) {
    return cuts_m_tiles(kOp) && w_stage(m_parts) < 8192 ? 8192 - w_stage(m_parts) : 0;
  }
  HD static constexpr int w_stages(int m_parts) {
    const int most = m_parts == 1 ? 12 : most_w_stages;
    const int fit = (budget - x_stages(m_parts) * x_stage - beyond(m_parts)) / w_stage(m_parts);
    return fit < most ? fit : most;
  }
  HD static constexpr int ring_of(int m_parts) {
    return x_stages(m_parts) * x_stage + w_stages(m_parts) * w_stage(m_parts) + beyond(m_parts);
  }
  static constexpr int ring_bytes = cuts_m_tiles(kOp) ? std::max({ring_of(1), ring_of(2), ring_of(4)}) : ring_of(1);
  static constexpr int smem_bytes = ring_bytes + fixed_bytes;
  // Where the rings were lie a block's own sums of all rows, and from every other part of K those that it adds.
  static constexpr int most_parts = batch_rows_most_parts(kOp, kRows);
  static_assert(w_stages(1) >= 3 && (kRows + (most_parts - 1) * ceil_div(kRows, most_parts)) * kSumPitch <= ring_bytes);
};

}  // namespace sluice::sm90
