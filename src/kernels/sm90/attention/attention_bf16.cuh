// SPDX-License-Identifier: Apache-2.0
// Attention on tensor cores: bfloat16 queries, pages of bfloat16 or of e4m3 codes, which are widened to halves on the
// way to the products, exactly (operands.cuh); sums in float32.
//
// A block has four warps and loads one tile of 64 positions after another into shared memory. Every warp takes 16 pairs
// (row, query head) and computes scores and output of its own. Sequences with few pairs are attention_tokens.cuh's.
//
// Probabilities are multiplied as a high and a low part: 17 bits of them, or 22 as halves. Half a unit of bfloat16 each
// would show in the output wherever values cancel. The cost is a third of the products.
#pragma once

#include <type_traits>

#include "base/bf16.h"
#include "kernels/ptx/cp_async.cuh"
#include "kernels/ptx/mbarrier.cuh"
#include "kernels/ptx/sync.cuh"
#include "kernels/sm90/attention/fold.cuh"
#include "kernels/sm90/attention/operands.cuh"
#include "kernels/sm90/attention/task.cuh"

namespace sluice::sm90 {

inline constexpr int kAttentionThreads = 128, kAttentionStages = 3;

// A tile of keys or values in shared memory, of bfloat16 or of e4m3 codes (Page: bf16_t or uint8_t). Pieces of 16 bytes
// are placed so that eight lanes that read the same piece of eight rows meet no bank twice.
template <int kWidth, class Page>
struct PageTile {
  static constexpr bool codes = std::is_same_v<Page, uint8_t>;
  static constexpr int row_bytes = kWidth * int{sizeof(Page)}, pieces = row_bytes / 16;
  static constexpr int bytes = kAttentionTile * row_bytes;
  static_assert(row_bytes >= 64 && row_bytes % 16 == 0);

  __device__ static __forceinline__ int place(int row, int piece) {
    return row * row_bytes + ((row_bytes == 64 ? piece ^ (row >> 1 & 3) : piece ^ (row & 7)) << 4);
  }
};

template <int kWidth, class Page>
struct AttentionShared {
  static constexpr int tile_bytes = PageTile<kWidth, Page>::bytes;
  static constexpr int stages = 0;                                         // of [keys, values]
  static constexpr int rows = stages + kAttentionStages * 2 * tile_bytes;  // int32 [4][64]: page rows of four tiles
  // Each lane's fragments of its queries, [4 warps][kWidth / 16][32] of 16 bytes. In registers they make the kernel
  // spill.
  static constexpr int queries = rows + 4 * kAttentionTile * 4;
  static constexpr int bytes = queries + 4 * (kWidth / 16) * 32 * 16;
  // Two blocks per multiprocessor, which keeps 1 KB of each for itself.
  static_assert(2 * (bytes + 1024) <= 228 * 1024);
};

// Sums of one warp: rows lane / 4 and lane / 4 + 8, columns 2 (lane % 4) and the next of each eight. Of codes, eight
// neighbouring columns of two tiles are the even and the odd ones of sixteen.
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

__device__ __forceinline__ void store_one(const RowsView& out, int64_t at, float x) {
  if (out.f32)
    static_cast<float*>(out.data)[at] = x;
  else
    static_cast<bf16_t*>(out.data)[at] = static_cast<bf16_t>(ptx::cvt_bf16x2_f32(0.0f, x));
}

// One tile of keys and values on the way to shared memory; rows beyond the end become zeros.
template <int kWidth, class Page>
__device__ __forceinline__ void load_attention_tile(const AttentionArgs& a, const int32_t* rows, uint32_t stage) {
  using Tile = PageTile<kWidth, Page>;
  const auto* keys = static_cast<const uint8_t*>(a.keys);
  const auto* values = static_cast<const uint8_t*>(a.values);
#pragma unroll
  for (int i = 0; i < kAttentionTile * Tile::pieces / kAttentionThreads; ++i) {
    const int at = i * kAttentionThreads + threadIdx.x, row = at / Tile::pieces, piece = at % Tile::pieces;
    const int from = rows[row];
    const int64_t byte = static_cast<int64_t>(from < 0 ? 0 : from) * Tile::row_bytes + piece * 16;
    const uint32_t to = stage + Tile::place(row, piece);
    ptx::cp_async_16(to, keys + byte, from >= 0);
    ptx::cp_async_16(to + Tile::bytes, values + byte, from >= 0);
  }
}

// The two rows' fragments of q of this lane, store(k, fragment) for 16 columns at a time. A product is over the same
// columns of queries and keys in whatever order: of codes a lane has four neighbours.
template <int kWidth, class Page, class Store>
__device__ __forceinline__ void load_queries(const AttentionArgs& a, const AttentionTask& t, int first_pair,
                                             Store&& store) {
  const int lane = threadIdx.x & 31, group = a.shape.group();
  const bf16_t* from[2];
  bool valid[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int pair = first_pair + lane / 4 + 8 * h;
    valid[h] = pair < t.pairs;
    const int row = (t.first_pair + pair) / group, head = t.key_head * group + (t.first_pair + pair) % group;
    from[h] = static_cast<const bf16_t*>(a.q.data) +
              (valid[h] ? (t.first_row + row) * a.q.stride + static_cast<int64_t>(head) * kWidth : 0);
  }
#pragma unroll 2
  for (int k = 0; k < kWidth / 16; ++k) {
    uint32_t q[4];
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int column = PageTile<kWidth, Page>::codes ? 4 * (lane % 4) + 2 * c : 8 * c + 2 * (lane % 4);
        q[h + 2 * c] = valid[h] ? load_pair(from[h] + 16 * k + column) : 0u;
      }
    store(k, uint4{q[0], q[1], q[2], q[3]});
  }
}

// Scores of 8 kTiles positions of the tile from `first` on.
template <int kWidth, class Page, int kTiles, class Query>
__device__ __forceinline__ void multiply_keys(Query&& query, uint32_t keys, int first, float (&s)[kTiles][4]) {
  using Tile = PageTile<kWidth, Page>;
  const int lane = threadIdx.x & 31;
#pragma unroll
  for (int n = 0; n < kTiles; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) s[n][i] = 0.0f;
  if constexpr (Tile::codes) {
#pragma unroll
    for (int k = 0; k < kWidth / 16; k += 4)
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        uint32_t codes[4];  // of position lane / 4, columns 16 (k + i) + 4 (lane % 4) and the next three
        ptx::ldmatrix_x4(codes, keys + Tile::place(first + 8 * n + (lane & 7), k + lane / 8));
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          uint32_t low, high;
          widen_codes(codes[i], low, high);
          const uint4 q = query(k + i);
          Operands<Page>::multiply(s[n], {q.x, q.y, q.z, q.w}, low, high);
        }
      }
  } else {
#pragma unroll
    for (int k = 0; k < kWidth / 16; k += 2) {
      const uint4 q0 = query(k), q1 = query(k + 1);
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        uint32_t b[4];
        ptx::ldmatrix_x4(b, keys + Tile::place(first + 8 * n + (lane & 7), 2 * k + lane / 8));
        Operands<Page>::multiply(s[n], {q0.x, q0.y, q0.z, q0.w}, b[0], b[1]);
        Operands<Page>::multiply(s[n], {q1.x, q1.y, q1.z, q1.w}, b[2], b[3]);
      }
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

// The largest scores of the two rows, times their scales.
template <int kTiles>
__device__ __forceinline__ void row_maxima(const float (&s)[kTiles][4], const float (&scale)[2], float (&maxima)[2]) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float m = s[0][2 * h];
#pragma unroll
    for (int n = 0; n < kTiles; ++n) m = fmaxf(m, fmaxf(s[n][2 * h], s[n][2 * h + 1]));
    m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 1));
    m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 2));
    maxima[h] = __fmul_rn(m, scale[h]);
  }
}

// Adds 16 positions, from `position` of the tile on, to the sums of the columns from `first_column` on.
template <int kWidth, class Page, int kTiles>
__device__ __forceinline__ void multiply_values(const uint32_t (&high)[4], const uint32_t (&low)[4], uint32_t values,
                                                int position, int first_column, AttentionSums<kTiles>& sums) {
  using Tile = PageTile<kWidth, Page>;
  using Ops = Operands<Page>;
  const int lane = threadIdx.x & 31, row = position + (lane & 15);
  const auto multiply = [&](int n, const uint32_t(&b)[4]) {
    Ops::multiply(sums.o[n], high, b[0], b[1]);
    Ops::multiply(sums.o[n + 1], high, b[2], b[3]);
    Ops::multiply(sums.o[n], low, b[0], b[1]);
    Ops::multiply(sums.o[n + 1], low, b[2], b[3]);
  };
  if constexpr (Tile::codes) {
    // A piece has 16 columns. Transposed in pairs of codes: those of two neighbouring columns at two positions.
#pragma unroll
    for (int n = 0; n < kTiles; n += 4) {
      const int piece = first_column / 16 + n / 2 + (kTiles == 2 ? 0 : lane / 16);
      uint32_t codes[4];
      ptx::ldmatrix_x4_trans(codes, values + Tile::place(row, piece));
#pragma unroll
      for (int i = 0; i < (kTiles == 2 ? 1 : 2); ++i) {
        // Positions 2 (lane % 4) and the next, and those eight further: first those of the even column.
        constexpr uint32_t kByColumn = 0x3120;
        uint32_t even[2], odd[2];
#pragma unroll
        for (int j = 0; j < 2; ++j) widen_codes(ptx::prmt(codes[2 * i + j], 0u, kByColumn), even[j], odd[j]);
        multiply(n + 2 * i, {even[0], even[1], odd[0], odd[1]});
      }
    }
  } else {
#pragma unroll
    for (int n = 0; n < kTiles; n += 2) {
      uint32_t b[4];
      ptx::ldmatrix_x4_trans(b, values + Tile::place(row, (first_column + 8 * n) / 8 + lane / 16));
      multiply(n, b);
    }
  }
  // Sums of the probabilities as they were multiplied, in the same order as the products.
  Ops::multiply(sums.weights, high, Ops::ones, Ops::ones);
  Ops::multiply(sums.weights, low, Ops::ones, Ops::ones);
}

// use(column, sum, next column's sum) for this lane's columns, of the first row (h 0) or the second.
template <class Page, int kTiles, class Use>
__device__ __forceinline__ void for_columns(const AttentionSums<kTiles>& sums, int h, Use&& use) {
  const int lane = threadIdx.x & 31;
#pragma unroll
  for (int n = 0; n < kTiles; n += 2) {
    const float(&a)[4] = sums.o[n], (&b)[4] = sums.o[n + 1];
    if constexpr (std::is_same_v<Page, uint8_t>) {
      use(8 * n + 4 * (lane % 4), a[2 * h], b[2 * h]);
      use(8 * n + 4 * (lane % 4) + 2, a[2 * h + 1], b[2 * h + 1]);
    } else {
      use(8 * n + 2 * (lane % 4), a[2 * h], a[2 * h + 1]);
      use(8 * n + 8 + 2 * (lane % 4), b[2 * h], b[2 * h + 1]);
    }
  }
}

// Leaves sums to the second kernel as a row's result number `result`, or, at -1, the finished rows in `out`.
template <int kWidth, class Page, int kTiles>
__device__ __forceinline__ void store_sums(const AttentionArgs& a, const AttentionTask& t, int first_pair,
                                           int first_column, bool owns_stats, int result,
                                           const AttentionSums<kTiles>& sums) {
  const int lane = threadIdx.x & 31, group = a.shape.group();
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int pair = first_pair + lane / 4 + 8 * h;
    if (pair >= t.pairs) continue;
    const int row = (t.first_pair + pair) / group, head = t.key_head * group + (t.first_pair + pair) % group;
    if (result >= 0) {
      const int64_t of_row = a.plan.partial_row(t.sequence, t.first_row, row);
      const int64_t at = (of_row * a.shape.heads + head) * a.plan.results + result;
      float* to = a.partial + at * kWidth + first_column;
      for_columns<Page>(sums, h, [&](int column, float x, float y) {
        *reinterpret_cast<float2*>(to + column) = {x, y};
      });
      if (owns_stats && lane % 4 == 0)
        *reinterpret_cast<float2*>(a.partial_stats + 2 * at) = {sums.maximum[h], sums.weights[2 * h]};
      continue;
    }
    const int64_t at = (t.first_row + row) * a.out.stride + static_cast<int64_t>(head) * kWidth + first_column;
    for_columns<Page>(sums, h, [&](int column, float x, float y) {
      store_pair(a.out, at + column, weighted_mean(x, sums.weights[2 * h], a.value_scale),
                 weighted_mean(y, sums.weights[2 * h], a.value_scale));
    });
  }
}

// The pipeline of tiles: body(tile, keys, values) for the tiles [t.first_tile, t.last_tile), and done(chunk) after the
// last one of each chunk. begin() before everything that the kernels ahead of this one write: the
// queries and the new rows' keys and values. What is read before begin() is the step's integers and older positions.
template <int kWidth, class Page, class Begin, class Body, class Done>
__device__ __forceinline__ void for_tiles(const AttentionArgs& a, const AttentionTask& t, uint8_t* smem, Begin&& begin,
                                          Body&& body, Done&& done) {
  using Shared = AttentionShared<kWidth, Page>;
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
    if (tile < last) load_attention_tile<kWidth, Page>(a, rows + (tile & 3) * kAttentionTile, stage_of(tile));
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

template <int kWidth, class Page>
__device__ __forceinline__ void attend_many(const AttentionArgs& a, const AttentionTask& t, int part, float scale,
                                            uint8_t* smem) {
  constexpr int kTiles = kWidth / 8, kScoreTiles = kAttentionTile / 8;
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, first_pair = 16 * warp, group = a.shape.group();
  const int seen[2] = {positions_seen(t, first_pair + lane / 4, group),
                       positions_seen(t, first_pair + lane / 4 + 8, group)};
  const int least = positions_seen(t, first_pair, group);  // of the warp; later pairs see as many or more
  const bool full = first_pair + 16 <= t.pairs, split = t.parts.count > 1;
  auto* queries =
      reinterpret_cast<uint4*>(smem + AttentionShared<kWidth, Page>::queries) + warp * (kWidth / 16) * 32 + lane;
  float scales[2] = {scale, scale};  // of the two rows
  AttentionSums<kTiles> sums, chunk_sums;
  sums.clear();
  chunk_sums.clear();
  for_tiles<kWidth, Page>(
      a, t, smem,
      [&] {
        ptx::griddepcontrol_wait();
        uint32_t max_abs[2] = {};
        load_queries<kWidth, Page>(a, t, first_pair, [&](int k, uint4 q) {
          queries[k * 32] = q;  // read by this lane
          max_abs[0] = ptx::max_abs_bf16x2(max_abs[0], ptx::max_abs_bf16x2(q.x, q.z));
          max_abs[1] = ptx::max_abs_bf16x2(max_abs[1], ptx::max_abs_bf16x2(q.y, q.w));
        });
        if constexpr (PageTile<kWidth, Page>::codes) {
          const QueryScale rows[2] = {query_scale(max_abs[0]), query_scale(max_abs[1])};
          for (int k = 0; k < kWidth / 16; ++k) {
            const uint4 q = queries[k * 32];
            queries[k * 32] = {query_halves(q.x, rows[0].up), query_halves(q.y, rows[1].up),
                               query_halves(q.z, rows[0].up), query_halves(q.w, rows[1].up)};
          }
          scales[0] *= rows[0].down, scales[1] *= rows[1].down;
        }
      },
      [&](int tile, uint32_t keys, uint32_t values) {
        if (first_pair >= t.pairs) return;  // no barrier inside
        float s[kScoreTiles][4];
        multiply_keys<kWidth, Page>([&](int k) { return queries[k * 32]; }, keys, 0, s);
        if (!full || (tile + 1) * kAttentionTile > least) mask_scores(s, tile * kAttentionTile, seen);
        float maxima[2], base[2];
        row_maxima(s, scales, maxima);
        chunk_sums.raise(maxima, base);
#pragma unroll
        for (int k = 0; k < kAttentionTile / 16; ++k) {
          uint32_t high[4], low[4];
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const int n = 2 * k + i / 2, h = i % 2;
            Operands<Page>::split(ptx::ex2_approx(fmaf(s[n][2 * h], scales[h], -base[h])),
                                  ptx::ex2_approx(fmaf(s[n][2 * h + 1], scales[h], -base[h])), high[i], low[i]);
          }
          multiply_values<kWidth, Page>(high, low, values, 16 * k, 0, chunk_sums);
        }
      },
      [&](int chunk) {
        if (!a.plan.chunk_results()) return;
        if (split)
          store_sums<kWidth, Page>(a, t, first_pair, 0, true, chunk, chunk_sums);
        else
          sums.fold(chunk_sums);
        chunk_sums.clear();
      });
  if (!a.plan.chunk_results())
    store_sums<kWidth, Page>(a, t, first_pair, 0, split, split ? part : -1, chunk_sums);
  else if (!split)
    store_sums<kWidth, Page>(a, t, first_pair, 0, false, -1, sums);
}

// Grid: row tiles x key heads x parts.
template <int kWidth, class Page>
__global__ void __launch_bounds__(kAttentionThreads, 2) attention_bf16_kernel(const __grid_constant__ AttentionArgs a) {
  extern __shared__ __align__(128) uint8_t attention_smem[];
  ptx::griddepcontrol_launch_dependents();
  // A block that leaves early waits for the kernel before too: the next kernel waits for this one alone.
  AttentionTask t;
  if (!find_task(a, kAttentionRows, t)) return ptx::griddepcontrol_wait();
  const int part = static_cast<int>(blockIdx.z);
  if (part >= t.parts.count) return ptx::griddepcontrol_wait();
  t.first_tile = t.parts.first_tile(part);
  t.last_tile = min(t.parts.first_tile(part + 1), ceil_div(t.end, kAttentionTile));
  if (t.first_tile >= t.last_tile) return ptx::griddepcontrol_wait();
  attend_many<kWidth, Page>(a, t, part, a.scale * 1.4426950408889634f, attention_smem);  // exponents are of 2
}

// Folds the results of split sequences in order of their positions. A thread has one column of a row of one head, so
// that many results, kAhead, are on their way at once.
//
// All blocks have to begin before those of the kernel that comes next can, and what they begin beside are blocks of
// attention, which hold three quarters of the registers. So few results have a kernel of 48 registers instead of 84: a
// step of Qwen3-30B-A3B with 8 contexts of 2048 takes 7.71 ms, 7.83 with 84 (FP8 5.57, 5.64; H200).
inline constexpr int kFewResults = 8;
template <int kWidth, int kAhead>
__global__ void __launch_bounds__(kAttentionThreads) attention_fold_kernel(const __grid_constant__ AttentionArgs a) {
  ptx::griddepcontrol_launch_dependents();
  const int lane = threadIdx.x & 31, column = static_cast<int>(threadIdx.x) % kWidth;
  const int64_t item = static_cast<int64_t>(blockIdx.x) * (kAttentionThreads / kWidth) + threadIdx.x / kWidth;
  const auto at = static_cast<int>(item / a.shape.heads);  // partial_row()
  // The step's integers, which the kernel ahead does not write.
  int results = 0;
  const int s = a.plan.rows_of_sequence > 0     ? at / a.plan.rows_of_sequence
                : at < a.row_begin[a.sequences] ? sequence_of_row(a, at, lane)
                                                : a.sequences;
  int64_t row = 0;
  if (s < a.sequences) {
    const int context = a.contexts[s], first_row = a.row_begin[s];
    const int of_sequence = a.plan.rows_of_sequence > 0 ? at % a.plan.rows_of_sequence : at - first_row;
    row = first_row + of_sequence;
    const SequenceParts parts = a.plan.parts_of(context + a.row_begin[s + 1] - first_row);
    const int tiles = ceil_div(context + of_sequence + 1, kAttentionTile);
    if (parts.count > 1 && of_sequence < own_rows(a, s))
      results = a.plan.chunk_results() ? ceil_div(tiles, kChunkTiles) : parts.part_of_tile(tiles - 1) + 1;
  }
  const float* partial = a.partial + item * a.plan.results * kWidth + column;
  const float* stats = a.partial_stats + item * a.plan.results * 2;
  ptx::griddepcontrol_wait();
  if (results == 0) return;
  float sum = 0.0f, weights = 0.0f, maximum = kMinusInfinity;
  for (int first = 0; first < results; first += kAhead) {
    float next[kAhead];
    float2 stat[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (first + i >= results) continue;
      stat[i] = *reinterpret_cast<const float2*>(stats + 2 * (first + i));
      next[i] = partial[static_cast<int64_t>(first + i) * kWidth];
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (first + i >= results) continue;
      const FoldFactors f = fold_factors(maximum, stat[i].x);
      sum = folded(sum, next[i], f);
      weights = folded(weights, stat[i].y, f);
    }
  }
  store_one(a.out, row * a.out.stride + (item % a.shape.heads) * kWidth + column,
            weighted_mean(sum, weights, a.value_scale));
}

}  // namespace sluice::sm90
