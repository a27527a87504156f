// SPDX-License-Identifier: Apache-2.0
// Attention on tensor cores: bfloat16 queries and pages, sums in float32.
//
// A block has four warps and loads one tile of 64 positions after another into shared memory. With more than 16 pairs
// every warp takes 16 of them and computes scores and output of its own. With at most 16 (new tokens, a few drafts) the
// warps share the pairs: each computes the scores of 16 positions, then a quarter of the output's columns. Every
// element of scores and output is the same sum in the same order in both forms, so a row has the same bits in both.
//
// Probabilities are multiplied as two bfloat16 values, high and low part, which keeps 17 bits of them. Half a unit of
// bfloat16 per probability would show in the output wherever values cancel. The cost is a third of the products.
#pragma once

#include "base/bf16.h"
#include "kernels/ptx/bf16x2.cuh"
#include "kernels/ptx/cp_async.cuh"
#include "kernels/ptx/mbarrier.cuh"
#include "kernels/ptx/mma.cuh"
#include "kernels/ptx/sync.cuh"
#include "kernels/sm90/attention/fold.cuh"
#include "kernels/sm90/attention/task.cuh"

namespace sluice::sm90 {

inline constexpr int kAttentionThreads = 128, kAttentionStages = 3;

template <int kWidth>
struct AttentionShared {
  static constexpr int row_bytes = kWidth * 2, tile_bytes = kAttentionTile * row_bytes;
  static constexpr int probability_bytes = kAttentionFewRows * kAttentionTile * 2;
  static constexpr int stages = 0;                                         // of [keys, values]
  static constexpr int rows = stages + kAttentionStages * 2 * tile_bytes;  // int32 [4][64]: page rows of four tiles
  // Few pairs: probabilities' parts, bf16 [16][64], swizzled, and the warps' maxima, float [4][16].
  static constexpr int high = rows + 4 * kAttentionTile * 4;
  static constexpr int low = high + probability_bytes;
  static constexpr int maxima = low + probability_bytes;
  // Many pairs: each lane's fragments of its queries, [4 warps][kWidth / 16][32] of 16 bytes. In registers they make
  // the kernel spill.
  static constexpr int queries = high;
  static constexpr int query_bytes = 4 * (kWidth / 16) * 32 * 16;
  static constexpr int few_bytes = maxima + 4 * kAttentionFewRows * 4;
  static constexpr int bytes = few_bytes > queries + query_bytes ? few_bytes : queries + query_bytes;
  // Two blocks per multiprocessor, which keeps 1 KB of each for itself.
  static_assert(2 * (bytes + 1024) <= 228 * 1024);
};

// Sums of one warp: rows lane / 4 and lane / 4 + 8, columns 2 (lane % 4) and the next of each eight.
template <int kTiles>
struct AttentionSums {
  float o[kTiles][4], weights[4], maximum[2];  // weights: [0] and [2] are the two rows'

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int n = 0; n < kTiles; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) o[n][i] = 0.0f;
#pragma unroll
    for (int i = 0; i < 4; ++i) weights[i] = 0.0f;
    maximum[0] = maximum[1] = kMinusInfinity;
  }
  __device__ __forceinline__ void fold(const AttentionSums& next) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const FoldFactors f = fold_factors(maximum[h], next.maximum[h]);
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        o[n][2 * h] = folded(o[n][2 * h], next.o[n][2 * h], f);
        o[n][2 * h + 1] = folded(o[n][2 * h + 1], next.o[n][2 * h + 1], f);
      }
      weights[2 * h] = folded(weights[2 * h], next.weights[2 * h], f);
    }
  }
  // The tile's maxima join: what was summed so far is scaled to the new ones. Returns what exponents are taken against.
  __device__ __forceinline__ void raise(const float (&tile_maximum)[2], float (&base)[2]) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float both = fmaxf(maximum[h], tile_maximum[h]);
      base[h] = exponent_base(both);
      const float keep = ptx::ex2_approx(__fsub_rn(maximum[h], base[h]));
      maximum[h] = both;
#pragma unroll
      for (int n = 0; n < kTiles; ++n) o[n][2 * h] *= keep, o[n][2 * h + 1] *= keep;
      weights[2 * h] *= keep;
    }
  }
};

// Two neighbours of a row whose address may be odd: a row of a wider matrix.
__device__ __forceinline__ uint32_t load_pair(const bf16_t* from) {
  if ((reinterpret_cast<uintptr_t>(from) & 3) == 0) return *reinterpret_cast<const uint32_t*>(from);
  return from[0] | static_cast<uint32_t>(from[1]) << 16;
}
__device__ __forceinline__ void store_pair(const RowsView& out, int64_t at, float x, float y) {
  if (out.f32) {
    float* to = static_cast<float*>(out.data) + at;
    to[0] = x, to[1] = y;
    return;
  }
  bf16_t* to = static_cast<bf16_t*>(out.data) + at;
  const uint32_t pair = ptx::cvt_bf16x2_f32(y, x);
  if ((reinterpret_cast<uintptr_t>(to) & 3) == 0)
    *reinterpret_cast<uint32_t*>(to) = pair;
  else
    to[0] = static_cast<bf16_t>(pair), to[1] = static_cast<bf16_t>(pair >> 16);
}

// One tile of keys and values on the way to shared memory; rows beyond the end become zeros.
template <int kWidth>
__device__ __forceinline__ void load_attention_tile(const AttentionArgs& a, const int32_t* rows, uint32_t stage) {
  constexpr int kPieces = kWidth / 8, kSteps = kAttentionTile * kPieces / kAttentionThreads;
  using Shared = AttentionShared<kWidth>;
  const auto* keys = static_cast<const bf16_t*>(a.keys);
  const auto* values = static_cast<const bf16_t*>(a.values);
#pragma unroll
  for (int i = 0; i < kSteps; ++i) {
    const int at = i * kAttentionThreads + threadIdx.x, row = at / kPieces, piece = at % kPieces;
    const int from = rows[row];
    const int64_t element = static_cast<int64_t>(from < 0 ? 0 : from) * kWidth + piece * 8;
    const uint32_t to = stage + row * Shared::row_bytes + ((piece ^ (row & 7)) << 4);
    ptx::cp_async_16(to, keys + element, from >= 0);
    ptx::cp_async_16(to + Shared::tile_bytes, values + element, from >= 0);
  }
}

// The two rows' fragments of q of this lane.
template <int kWidth>
__device__ __forceinline__ void load_queries(const AttentionArgs& a, const AttentionTask& t, int first_pair,
                                             uint32_t (&q)[kWidth / 16][4]) {
  const int lane = threadIdx.x & 31, group = a.shape.group();
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int pair = first_pair + lane / 4 + 8 * h;
    const bool valid = pair < t.pairs;
    const int row = (t.first_pair + pair) / group, head = t.key_head * group + (t.first_pair + pair) % group;
    const auto* from = static_cast<const bf16_t*>(a.q.data) +
                       (valid ? (t.first_row + row) * a.q.stride + static_cast<int64_t>(head) * kWidth : 0);
#pragma unroll
    for (int k = 0; k < kWidth / 16; ++k)
#pragma unroll
      for (int c = 0; c < 2; ++c) q[k][h + 2 * c] = valid ? load_pair(from + 16 * k + 8 * c + 2 * (lane % 4)) : 0u;
  }
}

// Scores of 8 kTiles positions of the tile from `first` on.
template <int kWidth, int kTiles, class Query>
__device__ __forceinline__ void multiply_keys(Query&& query, uint32_t keys, int first, float (&s)[kTiles][4]) {
  const int lane = threadIdx.x & 31;
#pragma unroll
  for (int n = 0; n < kTiles; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) s[n][i] = 0.0f;
#pragma unroll
  for (int k = 0; k < kWidth / 16; k += 2) {
    const uint4 q0 = query(k), q1 = query(k + 1);
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      const int row = first + 8 * n + (lane & 7), piece = 2 * k + lane / 8;
      uint32_t b[4];
      ptx::ldmatrix_x4(b, keys + row * (kWidth * 2) + ((piece ^ (row & 7)) << 4));
      ptx::mma_m16n8k16_bf16(s[n], {q0.x, q0.y, q0.z, q0.w}, b[0], b[1]);
      ptx::mma_m16n8k16_bf16(s[n], {q1.x, q1.y, q1.z, q1.w}, b[2], b[3]);
    }
  }
}

// Scores at positions that a row does not see become -infinity. first: position of s[0].
template <int kTiles>
__device__ __forceinline__ void mask_scores(float (&s)[kTiles][4], int first, const int (&seen)[2]) {
  const int column = first + 2 * (threadIdx.x & 3);
#pragma unroll
  for (int n = 0; n < kTiles; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (column + 8 * n + (i & 1) >= seen[i / 2]) s[n][i] = kMinusInfinity;
}

// The largest scores of the two rows, times `scale`.
template <int kTiles>
__device__ __forceinline__ void row_maxima(const float (&s)[kTiles][4], float scale, float (&maxima)[2]) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float m = s[0][2 * h];
#pragma unroll
    for (int n = 0; n < kTiles; ++n) m = fmaxf(m, fmaxf(s[n][2 * h], s[n][2 * h + 1]));
    m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 1));
    m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 2));
    maxima[h] = __fmul_rn(m, scale);
  }
}

// Two probabilities as a pair of high parts and a pair of what these leave over.
__device__ __forceinline__ void split_probabilities(float p0, float p1, uint32_t& high, uint32_t& low) {
  high = ptx::cvt_bf16x2_f32(p1, p0);
  low = ptx::cvt_bf16x2_f32(p1 - __uint_as_float(high & 0xffff0000u), p0 - __uint_as_float(high << 16));
}

// Adds 16 positions, from `position` of the tile on, to the sums of the columns from `first_column` on.
template <int kWidth, int kTiles>
__device__ __forceinline__ void multiply_values(const uint32_t (&high)[4], const uint32_t (&low)[4], uint32_t values,
                                                int position, int first_column, AttentionSums<kTiles>& sums) {
  constexpr uint32_t kOnes = 0x3f803f80u;
  const int lane = threadIdx.x & 31;
#pragma unroll
  for (int n = 0; n < kTiles; n += 2) {
    const int row = position + (lane & 15), piece = (first_column + 8 * n) / 8 + lane / 16;
    uint32_t b[4];
    ptx::ldmatrix_x4_trans(b, values + row * (kWidth * 2) + ((piece ^ (row & 7)) << 4));
    ptx::mma_m16n8k16_bf16(sums.o[n], high, b[0], b[1]);
    ptx::mma_m16n8k16_bf16(sums.o[n + 1], high, b[2], b[3]);
    ptx::mma_m16n8k16_bf16(sums.o[n], low, b[0], b[1]);
    ptx::mma_m16n8k16_bf16(sums.o[n + 1], low, b[2], b[3]);
  }
  // Sums of the probabilities as they were multiplied, in the same order as the products.
  ptx::mma_m16n8k16_bf16(sums.weights, high, kOnes, kOnes);
  ptx::mma_m16n8k16_bf16(sums.weights, low, kOnes, kOnes);
}

// Leaves a chunk's sums to the second kernel, or the finished rows in `out`.
template <int kWidth, int kTiles>
__device__ __forceinline__ void store_sums(const AttentionArgs& a, const AttentionTask& t, int first_pair,
                                           int first_column, bool owns_stats, int chunk,
                                           const AttentionSums<kTiles>& sums) {
  const int lane = threadIdx.x & 31, group = a.shape.group();
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int pair = first_pair + lane / 4 + 8 * h;
    if (pair >= t.pairs) continue;
    const int64_t row = t.first_row + (t.first_pair + pair) / group;
    const int head = t.key_head * group + (t.first_pair + pair) % group;
    const int column = first_column + 2 * (lane % 4);
    if (chunk >= 0) {
      const int64_t at = (row * a.shape.heads + head) * a.plan.max_chunks + chunk;
      float* to = a.partial + at * kWidth + column;
#pragma unroll
      for (int n = 0; n < kTiles; ++n)
        *reinterpret_cast<float2*>(to + 8 * n) = {sums.o[n][2 * h], sums.o[n][2 * h + 1]};
      if (owns_stats && lane % 4 == 0)
        *reinterpret_cast<float2*>(a.partial_stats + 2 * at) = {sums.maximum[h], sums.weights[2 * h]};
      continue;
    }
    const int64_t at = row * a.out.stride + static_cast<int64_t>(head) * kWidth + column;
#pragma unroll
    for (int n = 0; n < kTiles; ++n)
      store_pair(a.out, at + 8 * n, weighted_mean(sums.o[n][2 * h], sums.weights[2 * h]),
                 weighted_mean(sums.o[n][2 * h + 1], sums.weights[2 * h]));
  }
}

// The pipeline of tiles that both forms share: body(tile, keys, values) for the tiles [t.first_tile, t.last_tile), and
// done(chunk) after the last one of each chunk. begin() before everything that the kernels ahead of this one write: the
// queries and the new rows' keys and values. What is read before begin() is the step's integers and older positions.
template <int kWidth, class Begin, class Body, class Done>
__device__ __forceinline__ void for_tiles(const AttentionArgs& a, const AttentionTask& t, uint8_t* smem, Begin&& begin,
                                          Body&& body, Done&& done) {
  using Shared = AttentionShared<kWidth>;
  constexpr int kChunkTiles = kAttentionChunk / kAttentionTile;
  const int first = t.first_tile, last = t.last_tile;
  auto* rows = reinterpret_cast<int32_t*>(smem + Shared::rows);
  const uint32_t stages = ptx::smem_address(smem + Shared::stages);
  // Page rows are looked up two tiles before their copies are issued: the block table is a chain of two reads.
  const auto look_up = [&](int tile) {
    if (threadIdx.x < kAttentionTile && tile < last)
      rows[(tile & 3) * kAttentionTile + threadIdx.x] = page_row(a, t, tile * kAttentionTile + threadIdx.x);
  };
  const auto stage_of = [&](int tile) {
    return stages + static_cast<uint32_t>((tile - first) % kAttentionStages) * 2 * Shared::tile_bytes;
  };
  const auto issue = [&](int tile) {
    if (tile < last) load_attention_tile<kWidth>(a, rows + (tile & 3) * kAttentionTile, stage_of(tile));
    ptx::cp_async_commit();
  };
  for (int i = 0; i < kAttentionStages; ++i) look_up(first + i);
  __syncthreads();
  int ahead = 0;
  while (ahead + 1 < kAttentionStages && (first + ahead + 1) * kAttentionTile <= t.context) issue(first + ahead++);
  begin();
  while (ahead + 1 < kAttentionStages) issue(first + ahead++);
  for (int tile = first; tile < last; ++tile) {
    ptx::cp_async_wait<kAttentionStages - 2>();
    __syncthreads();
    issue(tile + kAttentionStages - 1);
    look_up(tile + kAttentionStages);
    const uint32_t stage = stage_of(tile);
    body(tile, stage, stage + Shared::tile_bytes);
    if ((tile + 1) % kChunkTiles == 0 || tile + 1 == last) done(tile / kChunkTiles);
  }
}

template <int kWidth>
__device__ __forceinline__ void attend_many(const AttentionArgs& a, const AttentionTask& t, float scale,
                                            uint8_t* smem) {
  constexpr int kTiles = kWidth / 8, kScoreTiles = kAttentionTile / 8;
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, first_pair = 16 * warp, group = a.shape.group();
  const int seen[2] = {positions_seen(t, first_pair + lane / 4, group),
                       positions_seen(t, first_pair + lane / 4 + 8, group)};
  const int least = positions_seen(t, first_pair, group);  // of the warp; later pairs see as many or more
  const bool full = first_pair + 16 <= t.pairs;
  auto* queries = reinterpret_cast<uint4*>(smem + AttentionShared<kWidth>::queries) + warp * (kWidth / 16) * 32 + lane;
  {
    uint32_t q[kWidth / 16][4];
    load_queries<kWidth>(a, t, first_pair, q);
#pragma unroll
    for (int k = 0; k < kWidth / 16; ++k) queries[k * 32] = {q[k][0], q[k][1], q[k][2], q[k][3]};  // read by this lane
  }
  AttentionSums<kTiles> sums, chunk_sums;
  sums.clear();
  chunk_sums.clear();
  for_tiles<kWidth>(
      a, t, smem, [] {},
      [&](int tile, uint32_t keys, uint32_t values) {
        if (first_pair >= t.pairs) return;  // no barrier inside
        float s[kScoreTiles][4];
        multiply_keys<kWidth>([&](int k) { return queries[k * 32]; }, keys, 0, s);
        if (!full || (tile + 1) * kAttentionTile > least) mask_scores(s, tile * kAttentionTile, seen);
        float maxima[2], base[2];
        row_maxima(s, scale, maxima);
        chunk_sums.raise(maxima, base);
#pragma unroll
        for (int k = 0; k < kAttentionTile / 16; ++k) {
          uint32_t high[4], low[4];
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const int n = 2 * k + i / 2, h = i % 2;
            split_probabilities(ptx::ex2_approx(fmaf(s[n][2 * h], scale, -base[h])),
                                ptx::ex2_approx(fmaf(s[n][2 * h + 1], scale, -base[h])), high[i], low[i]);
          }
          multiply_values<kWidth>(high, low, values, 16 * k, 0, chunk_sums);
        }
      },
      [&](int chunk) {
        if (t.split)
          store_sums<kWidth>(a, t, first_pair, 0, true, chunk, chunk_sums);
        else
          sums.fold(chunk_sums);
        chunk_sums.clear();
      });
  if (!t.split) store_sums<kWidth>(a, t, first_pair, 0, false, -1, sums);
}

// Few pairs: the four warps share them, and each has the sums of a quarter of the columns.
template <int kWidth, class Begin, class Done>
__device__ __forceinline__ void few_tiles(const AttentionArgs& a, const AttentionTask& t, float scale, uint8_t* smem,
                                          AttentionSums<kWidth / 32>& chunk_sums, Begin&& begin, Done&& done) {
  using Shared = AttentionShared<kWidth>;
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, group = a.shape.group();
  const int first_column = warp * (kWidth / 4), first_position = 16 * warp;
  const int seen[2] = {positions_seen(t, lane / 4, group), positions_seen(t, lane / 4 + 8, group)};
  auto* shared_maxima = reinterpret_cast<float*>(smem + Shared::maxima);
  uint32_t q[kWidth / 16][4];
  chunk_sums.clear();
  for_tiles<kWidth>(
      a, t, smem,
      [&] {
        begin();
        load_queries<kWidth>(a, t, 0, q);
      },
      [&](int tile, uint32_t keys, uint32_t values) {
        float s[2][4];
        multiply_keys<kWidth>(
            [&](int k) {
              return uint4{q[k][0], q[k][1], q[k][2], q[k][3]};
            },
            keys, first_position, s);
        mask_scores(s, tile * kAttentionTile + first_position, seen);
        float maxima[2], base[2];
        row_maxima(s, scale, maxima);
        if (lane % 4 == 0) {
          shared_maxima[warp * kAttentionFewRows + lane / 4] = maxima[0];
          shared_maxima[warp * kAttentionFewRows + lane / 4 + 8] = maxima[1];
        }
        __syncthreads();
#pragma unroll
        for (int w = 0; w < 4; ++w) {
          maxima[0] = fmaxf(maxima[0], shared_maxima[w * kAttentionFewRows + lane / 4]);
          maxima[1] = fmaxf(maxima[1], shared_maxima[w * kAttentionFewRows + lane / 4 + 8]);
        }
        chunk_sums.raise(maxima, base);
#pragma unroll
        for (int n = 0; n < 2; ++n)
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            uint32_t high, low;
            split_probabilities(ptx::ex2_approx(fmaf(s[n][2 * h], scale, -base[h])),
                                ptx::ex2_approx(fmaf(s[n][2 * h + 1], scale, -base[h])), high, low);
            const int row = lane / 4 + 8 * h, piece = 2 * warp + n;
            const int at = row * (kAttentionTile * 2) + ((piece ^ (row & 7)) << 4) + 4 * (lane % 4);
            *reinterpret_cast<uint32_t*>(smem + Shared::high + at) = high;
            *reinterpret_cast<uint32_t*>(smem + Shared::low + at) = low;
          }
        __syncthreads();
#pragma unroll
        for (int k = 0; k < kAttentionTile / 16; ++k) {
          const int row = lane & 15, piece = 2 * k + lane / 16;
          const int at = row * (kAttentionTile * 2) + ((piece ^ (row & 7)) << 4);
          uint32_t high[4], low[4];
          ptx::ldmatrix_x4(high, ptx::smem_address(smem + Shared::high + at));
          ptx::ldmatrix_x4(low, ptx::smem_address(smem + Shared::low + at));
          multiply_values<kWidth>(high, low, values, 16 * k, first_column, chunk_sums);
        }
      },
      done);
}

template <int kWidth>
__device__ __forceinline__ void attend_few(const AttentionArgs& a, const AttentionTask& t, float scale, uint8_t* smem) {
  const int warp = threadIdx.x >> 5, first_column = warp * (kWidth / 4);
  AttentionSums<kWidth / 32> sums, chunk_sums;
  sums.clear();
  few_tiles<kWidth>(
      a, t, scale, smem, chunk_sums, [] {},
      [&](int chunk) {
        if (t.split)
          store_sums<kWidth>(a, t, 0, first_column, warp == 0, chunk, chunk_sums);
        else
          sums.fold(chunk_sums);
        chunk_sums.clear();
      });
  if (!t.split) store_sums<kWidth>(a, t, 0, first_column, false, -1, sums);
}

// Grid: row tiles x key heads x parts.
template <int kWidth>
__global__ void __launch_bounds__(kAttentionThreads, 2) attention_bf16_kernel(const __grid_constant__ AttentionArgs a) {
  extern __shared__ __align__(128) uint8_t attention_smem[];
  ptx::griddepcontrol_launch_dependents();
  ptx::griddepcontrol_wait();
  AttentionTask t;
  if (!find_task(a, kAttentionRows, t)) return;
  if (blockIdx.z > 0 && !t.split) return;  // part 0 has all of the sequence
  if (blockIdx.z * a.plan.part_chunks * kAttentionChunk >= t.end) return;
  constexpr int kChunkTiles = kAttentionChunk / kAttentionTile;
  t.first_tile = static_cast<int>(blockIdx.z * a.plan.part_chunks) * kChunkTiles;
  t.last_tile = static_cast<int>(
      min((blockIdx.z + 1) * a.plan.part_chunks * kChunkTiles, int64_t{ceil_div(t.end, kAttentionTile)}));
  const float scale = a.scale * 1.4426950408889634f;  // exponents are of 2
  if (t.rows * a.shape.group() <= kAttentionFewRows)
    attend_few<kWidth>(a, t, scale, attention_smem);
  else
    attend_many<kWidth>(a, t, scale, attention_smem);
}

// Folds the chunks of split sequences. A warp folds one row of one head, a lane kWidth / 32 neighbouring columns of it.
template <int kWidth>
__global__ void __launch_bounds__(kAttentionThreads) attention_fold_kernel(const __grid_constant__ AttentionArgs a) {
  constexpr int kColumns = kWidth / 32, kAhead = 8;
  ptx::griddepcontrol_launch_dependents();
  const int lane = threadIdx.x & 31, heads = a.shape.heads;
  const int64_t item = static_cast<int64_t>(blockIdx.x) * (kAttentionThreads / 32) + (threadIdx.x >> 5);
  ptx::griddepcontrol_wait();
  const int64_t row = item / heads;
  if (row >= a.row_begin[a.sequences]) return;
  int s = 0;
  for (int base = 0; base < a.sequences; base += 32) {  // the sequence that holds the row
    const int i = base + lane;
    const bool begun = i < a.sequences && a.row_begin[i] <= row && row < a.row_begin[i + 1];
    const uint32_t found = __ballot_sync(0xffffffffu, begun);
    if (found == 0) continue;
    s = base + __ffs(static_cast<int>(found)) - 1;
    break;
  }
  if (own_rows(a, s) == 0) return;
  const int context = a.contexts[s], first_row = a.row_begin[s];
  if (!splits_sequence(a.plan, context + a.row_begin[s + 1] - first_row)) return;
  const int chunks = ceil_div(context + static_cast<int>(row - first_row) + 1, kAttentionChunk);
  const float* partial = a.partial + item * a.plan.max_chunks * kWidth + lane * kColumns;
  const float* stats = a.partial_stats + item * a.plan.max_chunks * 2;
  float sum[kColumns] = {}, weights = 0.0f, maximum = kMinusInfinity;
  for (int first = 0; first < chunks; first += kAhead) {
    float next[kAhead][kColumns];
    float2 stat[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (first + i >= chunks) continue;
      stat[i] = *reinterpret_cast<const float2*>(stats + 2 * (first + i));
#pragma unroll
      for (int c = 0; c < kColumns; c += 2) {
        const float2 v = *reinterpret_cast<const float2*>(partial + static_cast<int64_t>(first + i) * kWidth + c);
        next[i][c] = v.x, next[i][c + 1] = v.y;
      }
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (first + i >= chunks) continue;
      const FoldFactors f = fold_factors(maximum, stat[i].x);
#pragma unroll
      for (int c = 0; c < kColumns; ++c) sum[c] = folded(sum[c], next[i][c], f);
      weights = folded(weights, stat[i].y, f);
    }
  }
  const int64_t at = row * a.out.stride + (item % heads) * kWidth + lane * kColumns;
#pragma unroll
  for (int c = 0; c < kColumns; c += 2)
    store_pair(a.out, at + c, weighted_mean(sum[c], weights), weighted_mean(sum[c + 1], weights));
}

}  // namespace sluice::sm90
