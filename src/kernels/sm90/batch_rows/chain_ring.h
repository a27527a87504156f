// SPDX-License-Identifier: Apache-2.0
// The ring of the kernel that multiplies few rows with K in one part (chain.cuh): a stage holds several k-blocks of the
// weights and of x on one pair of barriers.
#pragma once

#include "base/hd.h"
#include "kernels/sm90/few_rows/heuristic.h"  // cuts_m_tiles
#include "kernels/sm90/layout.h"

namespace sluice::sm90 {

// Of equal costs the first one is taken.
inline constexpr int kChainTiles[] = {8, 16, 32, 48, 64};  // rows of x
// Of a call that is not forced: one tile, in FP8 also two of kFewChainRows (heuristic.cc).
inline constexpr int kMostChainRows = 64;
// Up to here a chain is taken also where K may be cut.
inline constexpr int kFewChainRows = 32;
static_assert(kMostChainRows <= 2 * kFewChainRows);
// Up to kMostChainRows it is taken there for matrices of so many M-tiles: heads have more, and gain nothing.
inline constexpr int kMostFullChainMTiles = 256;
// FP8, 64 rows, a chain and parts of K: kv_b of DeepSeek-V3 (256 M-tiles) 14.5 us and 10.1, o (56) 33.6 and 33.5, qkv
// of Qwen3 (40) 5.6 and 6.9. With in_proj (81) and qkv as chains steps of Nano took 0.5 to 0.8 % longer, with qkv alone
// 0.0 to 0.1 (H200).
inline constexpr int kMostFullFp8ChainMTiles = 64;
// The router of Qwen3 (32 k-blocks) with 64 rows takes 3.5 us in chains and 3.9 in eight parts of K (H100); steps of 24
// to 64 sequences are 0 to 1 % quicker (H200). That of Nano (42) takes as long as in parts.
inline constexpr int kShortRouterKBlocks = 32;
// The router of DeepSeek-V3 (112 k-blocks) with 24 rows takes 5.5 us if its M-tiles are cut as well as K, and 6.3 if K
// alone is, with 128 rows 6.5 and 6.8, with 256 rows 9.8 and 8.0 (H100). Nano's gains nothing.
inline constexpr int kLongRouterKBlocks = 64;
inline constexpr int kMostLongRouterRows = 128;
// Tasks of an M-tile: one warpgroup multiplies 64 or 32 weight rows.
inline constexpr int kChainMParts[] = {2, 4};
// k-blocks of a stage. With two, o of Qwen3 takes 8.2 us for one row instead of 6.3 (H200).
inline constexpr int kChainGroup = 4;
inline constexpr int kLeastChainStages = 3;  // one is multiplied, one is released, one is on its way
inline constexpr int kMostChainStages = 16;
inline constexpr int kChainBarrierBytes = 1024;  // stages follow, which are swizzled
static_assert(2 * 8 * kMostChainStages <= kChainBarrierBytes);
inline constexpr int kMostChainSmem = 232448;  // of the one block of a multiprocessor
// Where BatchRowsChoice::leaves_room: such a block fits beside one of attention of new tokens (of which a
// multiprocessor holds two; attention.cu asserts it), and begins when the other one has ended.
inline constexpr int kSharedChainSmem = 116000;
// Of up to so many rows. With 16 and 32 rows of Qwen3 the smaller ring costs 1 to 2 us more than it gains (H200).
inline constexpr int kMostSharedChainRows = 8;

// FP8 block: the scales of a k-block in shared memory, those of a tile's rows of x and that of the weights. They keep
// the alignment of pairs.
HD constexpr int scale_floats(WeightOperand o, int rows) { return block_scaled(o) ? rows + 4 : 0; }

struct ChainRing {
  int w_share = 0;               // bytes of a k-block of weights that a task has
  int x_stage = 0, w_stage = 0;  // bytes
  int scale_stage = 0;           // float32 values (scale_floats()), which follow the rings
  int stages = 0;
  int beyond = 0;  // the tensor cores read 64 weight rows from the last k-block as well
  HD constexpr int ring_bytes() const { return stages * (x_stage + w_stage) + beyond; }
  HD constexpr int smem_bytes() const { return kChainBarrierBytes + ring_bytes() + stages * scale_stage * 4; }
};
HD constexpr ChainRing chain_ring(WeightOperand op, int tile, int m_parts, int most_smem) {
  ChainRing r;
  r.w_share = k_block_bytes(op) / m_parts;
  r.x_stage = kChainGroup * tile * 128;
  r.w_stage = kChainGroup * r.w_share;
  r.scale_stage = kChainGroup * scale_floats(op, tile);
  r.beyond = k_block_bytes(op) / 2 - r.w_share;
  const int fit = (most_smem - kChainBarrierBytes - r.beyond) / (r.x_stage + r.w_stage + r.scale_stage * 4);
  r.stages = fit < kMostChainStages ? fit : kMostChainStages;
  return r;
}

}  // namespace sluice::sm90
