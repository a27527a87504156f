// SPDX-License-Identifier: Apache-2.0
// Tile types of the grouped GEMM and their shared-memory plan.
#pragma once

#include "kernels/sm90/layout.h"

namespace sluice::sm90 {

// Operand; row tiles of 128 a block takes at once; the most tokens a pass; slabs a stage; blocks an SM; blocks that
// share the rows of a tile (a cluster: each copies a part for all).
template <Operand kOp, int kMTiles, int kMaxN, int kSlabs, int kBlocks, int kCluster>
struct GemmTile {
  static constexpr Operand op = kOp;
  static constexpr int m_tiles = kMTiles, max_n = kMaxN, slabs = kSlabs, blocks_per_sm = kBlocks, cluster = kCluster;
  static constexpr bool tokens_first = sm90::tokens_first(kOp, kMaxN);
  static constexpr int step_n = step_of(kOp, kMaxN);
  static constexpr int threads = 384;
  static constexpr int queue = 4;                     // tasks that the rows may lag behind the weights
  static constexpr int briefs = kMaxN <= 64 ? 4 : 2;  // tasks known to the epilogues

  static constexpr int w_bytes = kMTiles * kSlabs * slab_bytes(kOp);
  static constexpr int x_bytes = kSlabs * kMaxN * 128;
  static constexpr bool block_scaled = sm90::block_scaled(kOp);
  static constexpr bool completes_token_rows = sm90::completes_token_rows(kOp, kMaxN);
  // A gated group of 128 columns is two row tiles.
  static constexpr bool rounds_gated = !block_scaled || kMTiles == 2;
  // Lanes read codes or scales of a stage themselves, so each says that it has; else the tensor cores read for a warp.
  static constexpr bool lanes_read = block_scaled || decodes(kOp);
  static constexpr int w_aligned = (w_bytes + 1023) / 1024 * 1024;
  static constexpr int scale_bytes = block_scaled ? kMaxN * 4 + kMTiles * 16 : 0;
  static constexpr int stage_bytes = (w_aligned + x_bytes + scale_bytes + 1023) / 1024 * 1024;
  // A warpgroup's part of the staging: 32 tokens x 64 rows in float32 (padded by 4 words against bank conflicts), or of
  // each warp 1 KB of values on their way to memory, two turns of 64 tokens' maxima and their scales.
  static constexpr int float_tokens = 32, float_pitch = 68;
  static constexpr int turn_tokens = kMaxN < 64 ? kMaxN : kMaxN % 64 == 0 ? 64 : 32;  // rounded at once
  static constexpr int group_staging = float_tokens * float_pitch * 4;
  static_assert(group_staging >= 4 * (1024 + 2 * 64 * 4 + 64 * 8));
  static constexpr int staging_bytes = 2 * group_staging;
  static constexpr int brief_bytes = 96 + kMTiles * 512 + kMaxN * 8;
  static constexpr int fixed_bytes = staging_bytes + briefs * brief_bytes + 512;
  static constexpr int budget = (kBlocks == 1 ? 232448 : 233472 / kBlocks - 1024) - fixed_bytes;
  static constexpr int stages_fit = budget / stage_bytes;
  static constexpr int stages = stages_fit > 16 ? 16 : stages_fit;
  static constexpr int smem_bytes = stages * stage_bytes + fixed_bytes;
  static_assert(stages >= 2);
  static_assert(!block_scaled || kSlabs == slabs_a_scale(kOp));
  static_assert(kCluster == 1 || (kSlabs == 1 && kCluster == 2));
};

}  // namespace sluice::sm90
