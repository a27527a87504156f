// SPDX-License-Identifier: Apache-2.0
// New tokens and short drafts: sequences of at most kAttentionFewRows pairs (row, query head) for each key head.
//
// An item is one key head of one sequence, or one part of its positions. A block takes one item after another. One warp
// copies and four compute, so that copies run ahead across items: with contexts of one to three tiles, a block of its
// own for every item is one chain of latencies (its integers, the block table, the tiles, the queries, the products),
// and memory is idle for most of it. Everything that the kernel ahead does not write is read before that one has
// finished: the integers and the tiles of older positions.
//
// The four warps share the pairs: each computes the scores of 16 positions of a tile, then a quarter of the output's
// columns. Every element of scores and output is the same sum in the same order as in attention_bf16.cuh, so a row has
// the same bits in both.
#pragma once

#include "kernels/sm90/attention/new_heads.cuh"

namespace sluice::sm90 {

// The computing warps: item_begins() when an item's queries are there, chunk_done(item, chunk, sums) after each chunk
// of it, with the sums since the last time that it cleared them, and item_done(item, sums).
template <int kWidth, class Page, int kTiles, class ItemBegins, class ChunkDone, class ItemDone>
__device__ __forceinline__ void attend_items(const AttentionArgs& a, uint8_t* smem, int count, ItemBegins&& item_begins,
                                             ChunkDone&& chunk_done, ItemDone&& item_done) {
  using Shared = TokensShared<kWidth, Page, kTiles>;
  using Queries = PageTile<kWidth, bf16_t>;
  constexpr int kStages = Shared::stages;
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  const int first_column = warp * (kWidth / 4), first_position = 16 * warp;
  const int pair_rows = rows_of_pairs(a.shape.group());
  const float scale = a.scale * 1.4426950408889634f;  // exponents are of 2
  auto* items = reinterpret_cast<const TokenItem*>(smem + Shared::items);
  auto* shared_maxima = reinterpret_cast<float*>(smem + Shared::maxima);
  auto* fresh = reinterpret_cast<Page*>(smem + Shared::fresh);
  auto& barriers = *reinterpret_cast<TokenBarriers<kStages>*>(smem + Shared::barriers);
  const uint32_t keys = ptx::smem_address(smem + Shared::keys), values = ptx::smem_address(smem + Shared::values);
  const auto arrive = [&](uint64_t* barrier) {
    __syncwarp();
    if (lane == 0) ptx::mbarrier_arrive(barrier);
  };
  int stage = 0;
  uint32_t parities = 0;  // bit 0: of the tiles' barriers, bit 1: of the queries'
#pragma unroll 1
  for (int i = 0; i < count; ++i) {
    const TokenItem& item = items[i];
    if (item.first_tile >= item.last_tile) continue;
    const bool projected = comes_projected<kTiles>(a);
    if (projected)
      prepare_heads<kWidth, Page>(a, item, smem + Shared::queries, fresh, [&] {
        ptx::mbarrier_wait(&barriers.queries_ready, parities >> 1);
        // The rows `fresh` of the item before have been read by all warps.
        ptx::bar_sync(1, kAttentionThreads);
      });
    else
      ptx::mbarrier_wait(&barriers.queries_ready, parities >> 1);
    parities ^= 2;
    uint32_t q[kWidth / 16][4];
    float scales[2] = {scale, scale};  // of the two rows
#pragma unroll
    for (int k = 0; k < kWidth / 16; ++k) {
      if constexpr (PageTile<kWidth, Page>::codes) {  // of each row the four columns that a lane has of the keys
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const int place = Queries::place(lane / 4 + 8 * h, 2 * k + lane % 4 / 2) + 8 * (lane & 1);
          const uint2 v = *reinterpret_cast<const uint2*>(smem + Shared::queries + place);
          q[k][h] = v.x, q[k][h + 2] = v.y;
        }
      } else {
        ptx::ldmatrix_x4(q[k],
                         ptx::smem_address(smem + Shared::queries) + Queries::place(lane & 15, 2 * k + lane / 16));
      }
    }
    arrive(&barriers.queries_read);
    if constexpr (PageTile<kWidth, Page>::codes) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        // Zeros. Three blocks per multiprocessor have 128 registers per thread, and the branch would spill some.
        if (h > 0 && kTiles != 2 && item.pairs <= 8) break;
        uint32_t max_abs = 0;
#pragma unroll
        for (int k = 0; k < kWidth / 16; ++k)
          max_abs = ptx::max_abs_bf16x2(max_abs, ptx::max_abs_bf16x2(q[k][h], q[k][h + 2]));
        const QueryScale row = query_scale(max_abs);
#pragma unroll
        for (int k = 0; k < kWidth / 16; ++k)
          q[k][h] = query_halves(q[k][h], row.up), q[k][h + 2] = query_halves(q[k][h + 2], row.up);
        scales[h] *= row.down;
      }
    }
    item_begins();
    AttentionSums<kWidth / 32> sums;
    sums.clear();
#pragma unroll 1
    for (int tile = item.first_tile, last = item.last_tile; tile < last; ++tile) {
      float s[2][4];
      ptx::mbarrier_wait(barriers.keys_ready + stage, parities & 1);
      const int new_row = item.end - 1 - tile * kAttentionTile;  // of the tile, if it has the new position
      const bool places = projected && new_row < kAttentionTile;
      if (places && new_row / 16 == warp)  // this warp alone reads that key
        place_row<kWidth, Page>(smem + Shared::keys + stage * Shared::tile_bytes, new_row, 0,
                                PageTile<kWidth, Page>::pieces, fresh);
      multiply_keys<kWidth, Page>(
          [&](int k) {
            return uint4{q[k][0], q[k][1], q[k][2], q[k][3]};
          },
          keys + stage * Shared::tile_bytes, first_position, s);
      arrive(barriers.keys_read + stage);
      const int context = item.context, pairs = item.pairs;
      const int seen[2] = {lane / 4 < pairs ? context + (lane / 4 * pair_rows >> 16) + 1 : 0,
                           lane / 4 + 8 < pairs ? context + ((lane / 4 + 8) * pair_rows >> 16) + 1 : 0};
      mask_scores(s, tile * kAttentionTile + first_position, seen);
      float maxima[2], base[2];
      row_maxima(s, scales, maxima);
      if (lane % 4 == 0) {
        shared_maxima[warp * kAttentionFewRows + lane / 4] = maxima[0];
        shared_maxima[warp * kAttentionFewRows + lane / 4 + 8] = maxima[1];
      }
      ptx::bar_sync(1, kAttentionThreads);
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        maxima[0] = fmaxf(maxima[0], shared_maxima[w * kAttentionFewRows + lane / 4]);
        maxima[1] = fmaxf(maxima[1], shared_maxima[w * kAttentionFewRows + lane / 4 + 8]);
      }
      sums.raise(maxima, base);
#pragma unroll
      for (int n = 0; n < 2; ++n)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          uint32_t high, low;
          Operands<Page>::split(ptx::ex2_approx(fmaf(s[n][2 * h], scales[h], -base[h])),
                                ptx::ex2_approx(fmaf(s[n][2 * h + 1], scales[h], -base[h])), high, low);
          const int row = lane / 4 + 8 * h, piece = 2 * warp + n;
          const int place = row * (kAttentionTile * 2) + ((piece ^ (row & 7)) << 4) + 4 * (lane % 4);
          *reinterpret_cast<uint32_t*>(smem + Shared::high + place) = high;
          *reinterpret_cast<uint32_t*>(smem + Shared::low + place) = low;
        }
      ptx::bar_sync(1, kAttentionThreads);
      ptx::mbarrier_wait(barriers.values_ready + stage, parities & 1);
      if (places)  // each warp its own columns
        place_row<kWidth, Page>(smem + Shared::values + stage * Shared::tile_bytes, new_row,
                                warp * (PageTile<kWidth, Page>::pieces / 4), PageTile<kWidth, Page>::pieces / 4,
                                fresh + kWidth);
#pragma unroll
      for (int k = 0; k < kAttentionTile / 16; ++k) {
        const int row = lane & 15, piece = 2 * k + lane / 16;
        const int place = row * (kAttentionTile * 2) + ((piece ^ (row & 7)) << 4);
        uint32_t high[4], low[4];
        ptx::ldmatrix_x4(high, ptx::smem_address(smem + Shared::high + place));
        ptx::ldmatrix_x4(low, ptx::smem_address(smem + Shared::low + place));
        multiply_values<kWidth, Page>(high, low, values + stage * Shared::tile_bytes, 16 * k, first_column, sums);
      }
      arrive(barriers.values_read + stage);
      if (++stage == kStages) stage = 0, parities ^= 1;
      if ((tile + 1) % kChunkTiles == 0 || tile + 1 == last) chunk_done(item, tile / kChunkTiles, sums);
    }
    item_done(item, sums);
  }
}

// at: the item's number in the grid.
__device__ __forceinline__ AttentionTask task_of(const AttentionArgs& a, const TokenItem& item, int at) {
  AttentionTask t{};
  t.sequence = at / a.shape.key_heads / static_cast<int>(a.plan.parts);
  t.context = item.context;
  t.first_row = item.first_row;
  t.key_head = item.key_head;
  t.pairs = item.pairs;
  return t;
}

// Grid: any number of blocks, of which each takes at most kTokenItems items: every gridDim.x-th.
template <int kWidth, class Page, int kTiles>
__global__ void __launch_bounds__(kTokenThreads, token_blocks_per_multiprocessor(kTiles))
    attention_tokens_kernel(const __grid_constant__ AttentionArgs a) {
  extern __shared__ __align__(128) uint8_t attention_smem[];
  ptx::griddepcontrol_launch_dependents();
  const int blocks = static_cast<int>(gridDim.x), block = static_cast<int>(blockIdx.x);
  const int all = a.sequences * a.shape.key_heads * static_cast<int>(a.plan.parts);
  const int count = ceil_div(all - block, blocks);
  TokenRest rest;
  if (!begin_items<kWidth, Page, kTiles>(a, attention_smem, count, rest,
                                         [&](int i) { return token_item(a, block + i * blocks); }))
    return;
  const int warp = threadIdx.x >> 5, first_column = warp * (kWidth / 4);
  if (warp == kAttentionThreads / 32) return copy_items<kWidth, Page, kTiles>(a, attention_smem, count, rest);
  const auto* items = reinterpret_cast<const TokenItem*>(attention_smem + TokensShared<kWidth, Page, kTiles>::items);
  const auto number_of = [&](const TokenItem& item) { return block + static_cast<int>(&item - items) * blocks; };
  AttentionSums<kWidth / 32> sums;
  attend_items<kWidth, Page, kTiles>(
      a, attention_smem, count, [&] { sums.clear(); },
      [&](const TokenItem& item, int chunk, AttentionSums<kWidth / 32>& chunk_sums) {
        if (!a.plan.chunk_results()) return;
        if (item.split())
          store_sums<kWidth, Page>(a, task_of(a, item, number_of(item)), 0, first_column, warp == 0, chunk, chunk_sums);
        else
          sums.fold(chunk_sums);
        chunk_sums.clear();
      },
      [&](const TokenItem& item, const AttentionSums<kWidth / 32>& item_sums) {
        if (!a.plan.chunk_results())
          return store_sums<kWidth, Page>(a, task_of(a, item, number_of(item)), 0, first_column, warp == 0, item.part,
                                          item_sums);
        if (item.split()) return;
        store_sums<kWidth, Page>(a, task_of(a, item, number_of(item)), 0, first_column, false, -1, sums);
      });
}

}  // namespace sluice::sm90
