// SPDX-License-Identifier: Apache-2.0
// The ring of the kernel that multiplies few rows with K in one part (chain.cuh): a stage holds several k-blocks of the
// weights and of x on one pair of barriers.
#pragma once

#include "base/hd.h"
#include "kernels/sm90/few_rows/heuristic.h"  // cuts_m_tiles
#include "kernels/sm90/layout.h"

namespace sluice::sm90 {

// Of equal costs the first one is taken. Two blocks per multiprocessor come first: the blocks of the next product then
// fetch weights while this one runs.
inline constexpr int kChainTiles[] = {8, 16, 32};  // rows of x
inline constexpr int kMostChainRows = 32;          // of a call that is not forced: one tile
inline constexpr int kChainGroups[] = {4, 2};      // k-blocks of a stage
inline constexpr int kChainBlocks[] = {2, 1, 3};   // per multiprocessor
inline constexpr int kMostChainBlocks = 3;
// Tasks of an M-tile: one warpgroup multiplies 64, 32 or 16 weight rows.
inline constexpr int kChainMParts[] = {2, 4, 8};
inline constexpr int kLeastChainStages = 3;  // one is multiplied, one is released, one is on its way
inline constexpr int kMostChainStages = 64;
inline constexpr int kChainBarrierBytes = 2 * 8 * kMostChainStages;
inline constexpr int kMostChainSmem = 232448;  // of one block per multiprocessor

struct ChainRing {
  int w_share = 0;               // bytes of a k-block of weights that a task has
  int x_stage = 0, w_stage = 0;  // bytes
  int stages = 0;
  int beyond = 0;  // the tensor cores read 64 weight rows from the last k-block as well
  HD constexpr int smem_bytes() const { return kChainBarrierBytes + stages * (x_stage + w_stage) + beyond; }
};
HD constexpr ChainRing chain_ring(WeightOperand op, int tile, int blocks, int m_parts, int group) {
  constexpr int kOfMultiprocessor = 233472, kReserved = 1024;
  ChainRing r;
  r.w_share = k_block_bytes(op) / m_parts;
  r.x_stage = group * tile * 128;
  r.w_stage = group * r.w_share;
  r.beyond = k_block_bytes(op) / 2 - r.w_share;
  const int budget = (blocks == 1 ? kMostChainSmem : kOfMultiprocessor / blocks - kReserved) - kChainBarrierBytes;
  const int fit = (budget - r.beyond) / (r.x_stage + r.w_stage);
  r.stages = fit < kMostChainStages ? fit : kMostChainStages;
  return r;
}

}  // namespace sluice::sm90
