// SPDX-License-Identifier: Apache-2.0
// Tile types of the grouped GEMM and their shared-memory plan.
#pragma once

#include "kernels/sm90/layout.h"

namespace sluice::sm90 {

// FP8 per token: in tiles of up to how many rows the warpgroup that stores the last part of a tile rounds its rows
// (complete_rows.cuh), and how many pieces of eight columns each of its threads then holds at once.
HD constexpr bool completes_by_warpgroup(WeightOperand o, int max_n) {
  return (o == WeightOperand::fp8 && max_n <= 64) || (o == WeightOperand::fp8_f32 && max_n <= 32);
}
inline constexpr int kCompletedPieces = 4;

// kOp: operand. kMTiles: M-tiles of 128 weight rows per task. kMaxN: most rows (tokens) of a tile. kKBlocks: k-blocks
// per stage. kBlocks: blocks per SM. kCluster: blocks that share the rows of a tile; each copies a part of them for
// all.
template <WeightOperand kOp, int kMTiles, int kMaxN, int kKBlocks, int kBlocks, int kCluster>
struct GemmTile {
  static constexpr WeightOperand op = kOp;
  static constexpr int m_tiles = kMTiles, max_n = kMaxN, k_blocks = kKBlocks, blocks_per_sm = kBlocks,
                       cluster = kCluster;
  static constexpr bool tokens_first = sm90::tokens_first(kOp, kMaxN);
  static constexpr int step_n = step_of(kOp, kMaxN);
  static constexpr int threads = 384;
  static constexpr int queue = 4;  // tasks by which the stream of rows may lag after the stream of weights
  static constexpr int params_slots = kMaxN <= 64 ? 4 : 2;  // tasks whose epilogue parameters are gathered ahead

  static constexpr int w_bytes = kMTiles * kKBlocks * k_block_bytes(kOp);
  static constexpr int x_bytes = kKBlocks * kMaxN * 128;
  static constexpr bool block_scaled = sm90::block_scaled(kOp);
  static constexpr bool completes_by_warp = sm90::completes_token_rows(kOp, kMaxN);
  static constexpr bool completes_by_warpgroup = sm90::completes_by_warpgroup(kOp, kMaxN);
  static constexpr bool completes_token_rows = completes_by_warp || completes_by_warpgroup;
  static constexpr bool reads_in_place = sm90::reads_in_place(kOp);
  // A gated group of 128 columns is two M-tiles.
  static constexpr bool rounds_gated = !block_scaled || kMTiles == 2;
  // Whether lanes read codes or scales of a stage themselves. Then every lane arrives when it has read; else one lane
  // arrives for its warp, for which the tensor cores read.
  static constexpr bool lanes_read = block_scaled || decodes(kOp);
  static constexpr int w_aligned = (w_bytes + 1023) / 1024 * 1024;
  static constexpr int scale_bytes = block_scaled ? kMaxN * 4 + kMTiles * 16 : 0;
  static constexpr int stage_bytes = (w_aligned + x_bytes + scale_bytes + 1023) / 1024 * 1024;
  // The staging of a warpgroup: 32 tokens x 64 weight rows in float32, padded by 4 words against bank conflicts. Or,
  // per warp, 1 KB of values on their way to memory, two buffers of the maxima of 64 tokens, and their scales.
  static constexpr int float_tokens = 32, float_pitch = 68;
  static constexpr int turn_tokens = kMaxN < 64 ? kMaxN : kMaxN % 64 == 0 ? 64 : 32;  // rounded at once
  static constexpr int group_staging = float_tokens * float_pitch * 4;
  static_assert(group_staging >= 4 * (1024 + 2 * 64 * 4 + 64 * 8));
  static constexpr int staging_bytes = 2 * group_staging;
  static constexpr int params_bytes = 96 + kMTiles * 512 + kMaxN * 8;
  static constexpr int fixed_bytes = staging_bytes + params_slots * params_bytes + 512;
  static constexpr int budget = (kBlocks == 1 ? 232448 : 233472 / kBlocks - 1024) - fixed_bytes;
  static constexpr int stages_fit = budget / stage_bytes;
  static constexpr int stages = stages_fit > 16 ? 16 : stages_fit;
  static constexpr int smem_bytes = stages * stage_bytes + fixed_bytes;
  static_assert(stages >= 2);
  static_assert(!reads_in_place || kKBlocks == 1);
  static_assert(!block_scaled || kKBlocks == k_blocks_per_scale(kOp));
  static_assert(kCluster == 1 || (kKBlocks == 1 && kCluster == 2));
};

}  // namespace sluice::sm90
