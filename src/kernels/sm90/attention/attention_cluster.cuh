// SPDX-License-Identifier: Apache-2.0
// New tokens of few sequences: a cluster of blocks shares the positions of one sequence and key head and folds its
// results through shared memory, in one launch. Each block takes as many tiles in a row as the sequence's own length
// asks for, so a recorded launch suits short and long ones. How the positions are cut depends on the size of the
// cluster, and so do the last bits.
#pragma once

#include "kernels/ptx/cluster.cuh"
#include "kernels/sm90/attention/attention_tokens.cuh"

namespace sluice::sm90 {

// Folds the pairs that are this block's over the results of the first blocks of the cluster, in order of position.
// o: [16][kWidth], stats: [16] of (maximum, sum), the same places in each block.
template <int kWidth>
__device__ __forceinline__ void fold_cluster(const AttentionArgs& a, const TokenItem& t, int chunk, int blocks,
                                             const float* o, const float* stats) {
  const int column = static_cast<int>(threadIdx.x), group = a.shape.group();
  if (column >= kWidth) return;
  for (int pair = static_cast<int>(blockIdx.z); pair < t.pairs; pair += blocks) {
    const int parts = ceil_div(t.context + pair / group + 1, chunk);
    float next[kMaxCluster], maxima[kMaxCluster], sums[kMaxCluster];
#pragma unroll
    for (int i = 0; i < kMaxCluster; ++i) {
      if (i >= parts) continue;
      maxima[i] = ptx::ld_cluster(stats + 2 * pair, static_cast<uint32_t>(i));
      sums[i] = ptx::ld_cluster(stats + 2 * pair + 1, static_cast<uint32_t>(i));
      next[i] = ptx::ld_cluster(o + pair * kWidth + column, static_cast<uint32_t>(i));
    }
    float sum = 0.0f, weights = 0.0f, maximum = kMinusInfinity;
#pragma unroll
    for (int i = 0; i < kMaxCluster; ++i) {
      if (i >= parts) continue;
      const FoldFactors f = fold_factors(maximum, maxima[i]);
      sum = folded(sum, next[i], f);
      weights = folded(weights, sums[i], f);
    }
    const int64_t row = t.first_row + pair / group;
    const int head = t.key_head * group + pair % group;
    store_one(a.out, row * a.out.stride + static_cast<int64_t>(head) * kWidth + column,
              weighted_mean(sum, weights, a.value_scale));
  }
}

// Grid: sequences x key heads x blocks of a cluster. No sequence has more than kAttentionFewRows pairs.
template <int kWidth, class Page>
__global__ void __launch_bounds__(kTokenThreads, token_blocks_per_multiprocessor(kClusterTiles))
    attention_cluster_kernel(const __grid_constant__ AttentionArgs a) {
  using Shared = TokensShared<kWidth, Page, kClusterTiles>;
  extern __shared__ __align__(128) uint8_t attention_smem[];
  ptx::griddepcontrol_launch_dependents();
  const int rank = static_cast<int>(blockIdx.z);
  TokenRest rest;
  const bool own_tiles = begin_items<kWidth, Page, kClusterTiles>(a, attention_smem, 1, rest, [&](int) {
    TokenItem t = token_item(a, static_cast<int>(blockIdx.x) * a.shape.key_heads + static_cast<int>(blockIdx.y));
    if (t.first_tile < t.last_tile) {
      const int own = ceil_div(t.last_tile, static_cast<int>(gridDim.z));
      t.first_tile = rank * own;
      t.last_tile = min(t.first_tile + own, t.last_tile);
    }
    return t;
  });
  if (!own_tiles) return;  // the barriers below do not wait for it
  const TokenItem& t = *reinterpret_cast<const TokenItem*>(attention_smem + Shared::items);
  const int tiles = ceil_div(t.end, kAttentionTile), own = ceil_div(tiles, static_cast<int>(gridDim.z));
  // Over the tiles, which all warps have read when they meet.
  auto* o = reinterpret_cast<float*>(attention_smem);
  float* stats = o + kAttentionFewRows * kWidth;
  if (threadIdx.x >= kAttentionThreads)
    copy_items<kWidth, Page, kClusterTiles>(a, attention_smem, 1, rest);
  else
    attend_items<kWidth, Page, kClusterTiles>(
        a, attention_smem, 1, [] {}, [](const TokenItem&, int, AttentionSums<kWidth / 32>&) {},
        [&](const TokenItem&, const AttentionSums<kWidth / 32>& sums) {
          ptx::bar_sync(1, kAttentionThreads);
          const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, first_column = warp * (kWidth / 4);
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            const int pair = lane / 4 + 8 * h;
            for_columns<Page>(sums, h, [&](int column, float x, float y) {
              *reinterpret_cast<float2*>(o + pair * kWidth + first_column + column) = {x, y};
            });
            if (warp == 0 && lane % 4 == 0)
              *reinterpret_cast<float2*>(stats + 2 * pair) = {sums.maximum[h], sums.weights[2 * h]};
          }
        });
  ptx::cluster_sync();
  fold_cluster<kWidth>(a, t, own * kAttentionTile, ceil_div(tiles, own), o, stats);
  ptx::cluster_sync();  // until all have read
}

}  // namespace sluice::sm90
