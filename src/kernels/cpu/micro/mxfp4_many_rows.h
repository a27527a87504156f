// SPDX-License-Identifier: Apache-2.0
// The MXFP4 integer kernel (mxfp4_dot.h) for many input rows: a chunk of weights is decoded to L1 once, for all rows.
#pragma once

#include <utility>

#include "kernels/cpu/micro/mxfp4_fixed_point.h"

namespace sluice::kernels::cpu {
namespace {

// Where the decoded weights of a chunk lie in scratch memory. A load waits for every earlier store of the same low 12
// address bits that has not left the core, and about 56 stores are in flight. Stores from front to back would cover
// most of a page, and decoding took a third longer. So the decoded weights of an N-tile advance through a page as fast
// as its codes, 512 bytes per 32 k, and start kStoreDistance bytes before the codes, so that stores stay behind loads.
// An N-tile takes three pages: the bytes [k / 4][panels][64] lie in two, at the same offsets; the bias corrections
// [panels][16] and the scales [panels][16] lie in the third.
template <int kPanels>
struct DecodedChunk {
  static constexpr int kPanelsPerNTile = kPanels < 2 ? kPanels : 2, kNTiles = kPanels / kPanelsPerNTile;
  static constexpr int64_t kBlockBytes = 256 * kPanelsPerNTile;  // per 32 k, in each page, and of codes
  static constexpr int64_t kNTileBytes = 3 * kPage, kStoreDistance = 768;
  uint8_t* n_tiles[kNTiles];
  // `codes`: those of the first chunk. With two panels, the following chunks' codes are whole pages away.
  DecodedChunk(uint8_t* scratch, const uint8_t* codes, int64_t codes_stride) {
    for (int t = 0; t < kNTiles; ++t) {
      const auto at = reinterpret_cast<uintptr_t>(codes + t * codes_stride) - kStoreDistance;
      n_tiles[t] = scratch + t * (kNTileBytes + kPage) + ((at - reinterpret_cast<uintptr_t>(scratch)) & (kPage - 64));
    }
  }
  // Block b (32 k) of panel p. The offsets of its parts follow.
  uint8_t* block(int p, int64_t b) const { return n_tiles[p / 2] + b * kBlockBytes + p % 2 * 64; }
  static constexpr int64_t scratch_bytes() { return kNTiles * (kNTileBytes + kPage); }
};
constexpr int64_t quad_offset(int panels, int q) { return q / 4 * kPage + q % 4 * 64 * (panels < 2 ? panels : 2); }
constexpr int64_t kCorrectionsOffset = 2 * kPage;
constexpr int64_t scales_offset(int panels) { return 2 * kPage + 64 * (panels < 2 ? panels : 2); }

// The weights of the thread's next call, which the tiles of this call prefetch to L2, interleaved over four pages as
// interleaved_ahead() does.
struct NextWeights {
  const uint8_t *codes, *scales;
  int64_t at, end;       // bytes of codes
  int groups_per_block;  // groups of four lines that a tile prefetches during one block of 32 k
};
SLUICE_INLINE bool has_group(const NextWeights& next, int i) { return i < next.groups_per_block && next.at < next.end; }
// The first of the next four lines; the others follow at a distance of one page each.
template <class V>
SLUICE_INLINE const uint8_t* take_group(NextWeights& next) {
  const int64_t line = next.at & (4 * kPage - 1);
  const uint8_t* p = next.codes + next.at - line + (line >> 2);
  if (next.at % 1024 == 0) V::prefetch_far(next.scales + next.at / 16);
  next.at += 256;
  return p;
}

// The register tile: kM input rows by kPanels panels, from `first_panel` on, over one chunk of k. first_chunk: the sums
// start at zero.
template <class V, int kPlanes, int kM, int kPanels, int kDecodedPanels>
static void run_fixed_point_tile(const DecodedChunk<kDecodedPanels>& weights, int first_panel, int64_t k,
                                 const PlanePointers* x, float* out, bool first_chunk, NextWeights& next) {
  using F = typename V::F;
  const int panel = kPanels == kDecodedPanels ? 0 : first_panel;  // a constant where it can be
  constexpr bool kInRegisters = kM * kPanels <= V::kFixedRegisterSums;
  F acc[kM][kPanels];
#pragma GCC unroll 8
  for (int m = 0; m < kM; ++m)
#pragma GCC unroll 4
    for (int p = 0; p < kPanels; ++p) {
      float* to = out + m * kNTile + out_of(panel + p);
      if (kInRegisters) acc[m][p] = first_chunk ? V::zero() : V::load(to);
      if (!kInRegisters && first_chunk) V::store(to, V::zero());
    }
  const DecodedChunk<kDecodedPanels> from = weights;  // a copy, because any store might change `weights`
  PlanePointers row[kM];
#pragma GCC unroll 8
  for (int m = 0; m < kM; ++m) row[m] = x[m];
  for (int64_t b = 0; b < k / kFixedBlockK; ++b) {
    typename V::ByteSums sum[kM][kPanels];
#pragma GCC unroll 4
    for (int p = 0; p < kPanels; ++p) {
      const typename V::Ints start = V::load_ints(from.block(panel + p, b) + kCorrectionsOffset);
#pragma GCC unroll 8
      for (int m = 0; m < kM; ++m) sum[m][p] = V::start_sums(start);
    }
#pragma GCC unroll 3
    for (int plane = 0; plane < kPlanes; ++plane) {
      if (plane > 0) {
#pragma GCC unroll 8
        for (int m = 0; m < kM; ++m)
#pragma GCC unroll 4
          for (int p = 0; p < kPanels; ++p)
            sum[m][p] = V::start_sums(V::template shift_left<8>(V::value_of(sum[m][p])));
      }
#pragma GCC unroll 1
      for (int half = 0; half < 2; ++half) {
        const uint8_t* group = has_group(next, 2 * plane + half) ? take_group<V>(next) : nullptr;
#pragma GCC unroll 4
        for (int i = 0; i < kQuadsPerBlock / 2; ++i) {
          const int q = kQuadsPerBlock / 2 * half + i;
          typename V::Bytes w[kPanels];
#pragma GCC unroll 4
          for (int p = 0; p < kPanels; ++p)
            w[p] = V::keep(V::load_bytes(from.block(panel + p, b) + quad_offset(kDecodedPanels, q)));
          if (group != nullptr) V::prefetch_far(group + i * kPage);
#pragma GCC unroll 8
          for (int m = 0; m < kM; ++m) {
            const auto v =
                V::broadcast_quad((plane < 2 ? row[m].upper + 64 * b + 32 * plane : row[m].low + 32 * b) + 4 * q);
#pragma GCC unroll 4
            for (int p = 0; p < kPanels; ++p) V::add_products(sum[m][p], v, w[p]);
          }
        }
#pragma GCC unroll 8
        for (int m = 0; m < kM; ++m)
#pragma GCC unroll 4
          for (int p = 0; p < kPanels; ++p) V::finish_four_quads(sum[m][p]);
      }
    }
    F ws[kPanels];
#pragma GCC unroll 4
    for (int p = 0; p < kPanels; ++p)
      ws[p] =
          V::keep(V::load(reinterpret_cast<const float*>(from.block(panel + p, b) + scales_offset(kDecodedPanels))));
#pragma GCC unroll 8
    for (int m = 0; m < kM; ++m) {
      const F xs = V::broadcast_f32(row[m].scales + 2 * b + kPlanes - 2);
#pragma GCC unroll 4
      for (int p = 0; p < kPanels; ++p) {
        const F part = V::multiply(V::to_floats(V::value_of(sum[m][p])), xs);
        if constexpr (kInRegisters) {
          acc[m][p] = V::multiply_add_f32(part, ws[p], acc[m][p]);
        } else {
          float* to = out + m * kNTile + out_of(panel + p);
          V::store(to, V::multiply_add_f32(part, ws[p], V::load(to)));
        }
      }
    }
  }
  if constexpr (kInRegisters) {
#pragma GCC unroll 8
    for (int m = 0; m < kM; ++m)
#pragma GCC unroll 4
      for (int p = 0; p < kPanels; ++p) V::store(out + m * kNTile + out_of(panel + p), acc[m][p]);
  }
}

// Runs the tile with kM = rows.
template <class V, int kPlanes, int kPanels, int kDecodedPanels, int... kLess>
SLUICE_INLINE void dispatch_fixed_m(const DecodedChunk<kDecodedPanels>& weights, int panel, int64_t k,
                                    const PlanePointers* x, int rows, float* out, bool first_chunk, NextWeights& next,
                                    std::integer_sequence<int, kLess...>) {
  using Run =
      void (*)(const DecodedChunk<kDecodedPanels>&, int, int64_t, const PlanePointers*, float*, bool, NextWeights&);
  static constexpr Run kRun[] = {run_fixed_point_tile<V, kPlanes, kLess + 1, kPanels, kDecodedPanels>...};
  kRun[rows - 1](weights, panel, k, x, out, first_chunk, next);
}

// Decodes the codes [k0, k0 + k) of kPanels panels: of one N-tile, or of two that follow each other.
template <class V, int kPanels>
static void decode_fixed_point_chunk(const GemmArgs& a, int64_t k0, int64_t k, const DecodedChunk<kPanels>& out) {
  constexpr int kPanelsPerNTile = DecodedChunk<kPanels>::kPanelsPerNTile;
#pragma GCC unroll 2
  for (int t = 0; t < DecodedChunk<kPanels>::kNTiles; ++t) {
    const uint8_t* codes = a.w.codes + t * a.w.codes_stride + k0 / 8 * 64 * kPanelsPerNTile;
    const uint8_t* scales = a.w.scales + t * a.w.scales_stride + k0 / kFixedBlockK * 16 * kPanelsPerNTile;
    uint8_t* const n_tile = out.block(2 * t, 0);
    for (int64_t b = 0; b < k / kFixedBlockK; ++b)
#pragma GCC unroll 2
      for (int i = 0; i < kPanelsPerNTile; ++i) {
        uint8_t* to = n_tile + b * DecodedChunk<kPanels>::kBlockBytes + 64 * i;
        typename V::Bytes weight_bytes;
#pragma GCC unroll 4
        for (int j = 0; j < 4; ++j) {
          const auto q = decode_quads<V>(V::keep(V::load_bytes(codes + 64 * ((4 * b + j) * kPanelsPerNTile + i))));
          const typename V::Bytes both = V::add_bytes(q.w[0], q.w[1]);
          weight_bytes = j == 0 ? both : V::add_bytes(weight_bytes, both);
          V::store_bytes(to + quad_offset(kPanels, 2 * j), q.w[0]);
          V::store_bytes(to + quad_offset(kPanels, 2 * j + 1), q.w[1]);
        }
        V::store_ints(to + kCorrectionsOffset, bias_correction<V>(weight_bytes));
        V::store(reinterpret_cast<float*>(to + scales_offset(kPanels)),
                 V::scale_e8m0(scales + 16 * (b * kPanelsPerNTile + i)));
      }
  }
}

// The packed rows of a call.
struct FixedPointRows {
  const uint8_t* x[kMaxM];
  int planes = 2;  // of the row that has the most
  explicit FixedPointRows(const GemmArgs& a) {
    for (int i = 0; i < a.x.m; ++i) {
      x[i] = a.x.data + packed_row(a.x, i) * a.x.stride;
      planes = num_planes(FixedPointRow(a.w.k), x[i]) > planes ? 3 : planes;
    }
  }
};

// kPanels panels: one N-tile, or two. x: [a.x.m] packed rows.
template <class V, int kPanels>
static void run_many_rows(const GemmArgs& a, const uint8_t* const* x) {
  static_assert(DecodedChunk<kPanels>::scratch_bytes() <= kScratchBytes);
  constexpr int kTilePanels = kPanels < V::kFixedTilePanels ? kPanels : V::kFixedTilePanels;
  constexpr auto kRowsOfTile = std::make_integer_sequence<int, V::kFixedTileM>();
  const FixedPointRow at(a.w.k);
  const DecodedChunk<kPanels> weights(a.scratch, a.w.codes, a.w.codes_stride);
  const int row_tiles = (a.x.m + V::kFixedTileM - 1) / V::kFixedTileM, tiles = row_tiles * (kPanels / kTilePanels);
  const int64_t bytes = a.w.k / 8 * 64 * kPanels;
  NextWeights next{a.task.next_codes, a.task.next_scales, 0, bytes, (kPanels + tiles - 1) / tiles};
  for (int64_t k0 = 0; k0 < a.w.k; k0 += kFixedChunkK) {
    const int64_t k = a.w.k - k0 < kFixedChunkK ? a.w.k - k0 : kFixedChunkK;
    decode_fixed_point_chunk<V, kPanels>(a, k0, k, weights);
    for (int i = 0; i < row_tiles; ++i) {
      const int begin = static_cast<int>(int64_t{a.x.m} * i / row_tiles),
                end = static_cast<int>(int64_t{a.x.m} * (i + 1) / row_tiles);
      PlanePointers rows[V::kFixedTileM];
      int planes = 2;
      for (int r = begin; r < end; ++r) {
        rows[r - begin] = planes_at(at, x[r], k0);
        planes = num_planes(at, x[r]) > planes ? 3 : planes;
      }
      float* out = a.out + static_cast<int64_t>(begin) * kNTile;
      for (int panel = 0; panel < kPanels; panel += kTilePanels)
        if (planes == 2)
          dispatch_fixed_m<V, 2, kTilePanels>(weights, panel, k, rows, end - begin, out, k0 == 0, next, kRowsOfTile);
        else
          dispatch_fixed_m<V, 3, kTilePanels>(weights, panel, k, rows, end - begin, out, k0 == 0, next, kRowsOfTile);
      for (int r = begin; r < end; ++r) {
        add_outliers<V, kPanels>(
            OutlierRange(at, x[r], k0), a.out + static_cast<int64_t>(r) * kNTile,
            [&](uint32_t j, int p) __attribute__((always_inline)) {
              const int quad = static_cast<int>(j % kFixedBlockK / 8 * 2 + quad_of(j % 8));
              const auto w = V::load_bytes(weights.block(p, j / kFixedBlockK) + quad_offset(kPanels, quad));
              return V::byte_of_quads(w, byte_of(j % 8));
            },
            [&](uint32_t block, int p) __attribute__((always_inline)) {
              return V::load(reinterpret_cast<const float*>(weights.block(p, block) + scales_offset(kPanels)));
            });
      }
    }
  }
}
template <class V>
static void run_many_rows(const GemmArgs& a, const uint8_t* const* x) {
  if constexpr (V::kFixedTilePanels == 4)
    if (a.w.n_tiles == 2) return run_many_rows<V, 4>(a, x);
  a.w.panels == 2 ? run_many_rows<V, 2>(a, x) : run_many_rows<V, 1>(a, x);
}

// A GemmFn for levels without a kernel for few rows (mxfp4_few_rows.h).
template <class V>
static void gemm_mxfp4_dot_many_rows(const GemmArgs& a) {
  prefetch_row_scales<V>(a.w);
  run_many_rows<V>(a, FixedPointRows(a).x);
  scale_outputs<V>(a);
}

}  // namespace
}  // namespace sluice::kernels::cpu
