// SPDX-License-Identifier: Apache-2.0
// The GEMM kernels of one N-tile whose products are floating point: register tiles over all input rows and all k.
//
// Few rows: the codes are decoded in registers, and the weights pass through the core once. Many rows: a chunk of
// kChunkK k is decoded to L1 once, and register tiles of all rows run over it; or every tile decodes, where
// decodes_in_every_tile() says so. All ways do the same arithmetic in the same order.
#pragma once

#include "kernels/cpu/micro/register_tile.h"

namespace sluice::kernels::cpu {
namespace {

// Input rows of a tile that decodes: by two panels, its sums and outputs take 24 of 32 registers.
inline constexpr int kDecodeTileM = 6;

// Which packed row is row i of a call.
SLUICE_INLINE int64_t packed_row(const InputRows& x, int i) { return x.indices != nullptr ? x.indices[i] : i; }

// Stores the weights of one 64-byte block, step by step.
template <class V, class C, int kPanels, int kStep = 0>
SLUICE_INLINE void store_decoded(const typename PackedSource<V, C>::Raw& raw, uint8_t* out) {
  using S = PackedSource<V, C>;
  if constexpr (kStep < S::kSteps) {
    V::store_weights(out + 64 * kPanels * kStep, S::template weights<kStep>(raw));
    store_decoded<V, C, kPanels, kStep + 1>(raw, out);
  }
}

// Decodes t.k codes of kPanels panels to `weights` and their block scales to `scales`, for DecodedSource.
template <class V, class C, int kPanels>
static void decode_chunk(const RegisterTile& t, uint8_t* weights, uint8_t* scales) {
  using S = PackedSource<V, C>;
  const uint8_t* codes = t.codes;
  for (int64_t b = 0; b < t.k / C::kBlockK; ++b) {
#pragma GCC unroll 8
    for (int p = 0; p < kPanels; ++p) store_decoded<V, C, kPanels>(S::load(codes + 64 * p), weights + 64 * p);
    codes += t.block_stride;
    weights += 64 * kPanels * S::kSteps;
  }
  if constexpr (C::kGroup > 0) {
    const int64_t groups = (t.k + C::kGroup - 1) / C::kGroup;
    for (int64_t g = 0; g < groups; ++g)
#pragma GCC unroll 8
      for (int p = 0; p < kPanels; ++p)
        V::store(reinterpret_cast<float*>(scales + (g * kPanels + p) * 64),
                 S::scale(t.scales + g * t.scale_stride + p * C::kScaleBytes));
  }
}

// One row tile after the other, each over all k. `next`: the codes that the thread reads after this N-tile.
template <class V, class C, int kPanels>
static void run_packed_tiles(const RegisterTile& whole, int m, const uint8_t* next) {
  const RowTiles<V> tiles(m, C::kBits == 16 ? V::kTileM : kDecodeTileM);
  for (int i = 0; i < tiles.tiles; ++i) {
    const int begin = tiles.begin(i);
    RegisterTile tile = whole;
    tile.shared = {tiles.tiles, i, next - whole.codes};
    tile.x += begin;
    tile.x_group += begin;
    tile.out += static_cast<int64_t>(begin) * kNTile;
    dispatch_m<V, PackedSource<V, C>, kPanels>(tile, tiles.begin(i + 1) - begin);
  }
}

// One chunk of k after the other: it is decoded to `scratch`, and all row tiles run over it.
template <class V, class C, int kPanels>
static void run_decoded_tiles(const RegisterTile& whole, int m, uint8_t* scratch) {
  static_assert(V::kKPerStep == 1, "x advances by one float per k");
  const RowTiles<V> tiles(m);
  uint8_t* const weights = scratch;
  uint8_t* const scales = scratch + kChunkK * 64 * kPanels;
  for (int64_t k0 = 0; k0 < whole.k; k0 += kChunkK) {
    const int64_t k = whole.k - k0 < kChunkK ? whole.k - k0 : kChunkK;
    RegisterTile chunk = whole;
    chunk.codes = whole.codes + k0 / C::kBlockK * whole.block_stride;
    if constexpr (C::kGroup > 0) chunk.scales = whole.scales + k0 / C::kGroup * whole.scale_stride;
    chunk.k = k;
    chunk.from_zero = k0 == 0;
    decode_chunk<V, C, kPanels>(chunk, weights, scales);
    chunk.ahead = chunk.codes;
    chunk.ahead_end = chunk.codes + k / C::kBlockK * whole.block_stride;
    chunk.codes = weights;
    chunk.block_stride = 64 * kPanels;
    chunk.scales = scales;
    chunk.scale_stride = 64 * kPanels;
    for (int i = 0; i < tiles.tiles; ++i) {
      const int begin = tiles.begin(i), end = tiles.begin(i + 1);
      const uint8_t* rows[8];
      const float* groups[8];
      for (int r = begin; r < end; ++r) {
        rows[r - begin] = whole.x[r] + k0 * 4;
        groups[r - begin] = C::kGroup == 128 ? whole.x_group[r] + k0 / 128 : nullptr;
      }
      RegisterTile tile = chunk;
      tile.x = rows;
      tile.x_group = groups;
      tile.out = whole.out + static_cast<int64_t>(begin) * kNTile;
      dispatch_m<V, DecodedSource<V, C::kGroup>, kPanels>(tile, end - begin);
      chunk.ahead += k / kStepsPerPrefetch * 64;  // the share of this row tile
    }
  }
}

// Panels [panel, panel + kPanels) of one N-tile.
template <class V, class C, int kPanels>
static void run_n_tile(const GemmArgs& a, int panel) {
  alignas(64) const uint8_t* x[kMaxM];
  const float* x_group[kMaxM];
  for (int i = 0; i < a.x.m; ++i) {
    const int64_t row = packed_row(a.x, i);
    x[i] = a.x.data + row * a.x.stride;
    x_group[i] = C::kGroup == 128 ? a.x.group_scale + row * a.x.group_stride : nullptr;
  }
  RegisterTile t{};
  t.codes = a.w.codes + 64 * panel;
  t.block_stride = 64 * a.w.panels;
  t.scales = a.w.scales + panel * C::kScaleBytes;
  t.scale_stride = static_cast<int64_t>(a.w.panels) * C::kScaleBytes;
  t.x = x;
  t.x_group = x_group;
  t.out = a.out + kPanelN * panel;
  t.from_zero = true;
  t.k = a.w.k;
  t.stream = a.task.stream;
  if constexpr (decodes_in_every_tile<V>()) {
    run_packed_tiles<V, C, kPanels>(t, a.x.m, a.task.next_codes + 64 * panel);
  } else {
    // A tile of 7 or 8 rows that decodes 4-bit codes has too few registers. Decoding to L1 first is faster (AVX-512,
    // one core: 80 -> 115 GFLOP/s).
    constexpr int kInRegisters = C::kBits == 4 && V::kTileM > 6 ? 6 : tile_m<V, kPanels>();
    if (a.x.m <= kInRegisters) return dispatch_m<V, PackedSource<V, C>, kPanels>(t, a.x.m);
    // With more panels than kTilePanels, gemm() passes few rows only.
    if constexpr (kPanels <= V::kTilePanels) run_decoded_tiles<V, C, kPanels>(t, a.x.m, a.scratch);
  }
}

// Multiplies the finished sums of all N-tiles by the row scales of weights and inputs.
template <class V>
SLUICE_INLINE void scale_outputs(const GemmArgs& a) {
  const float* row_scale = a.w.row_scale;
  float* n_tile = a.out;
  for (int t = 0; t < a.w.n_tiles; ++t, row_scale += kPanelN * a.w.panels, n_tile += kNTileOutStride)
    for (int i = 0; i < a.x.m; ++i) {
      const int64_t row = packed_row(a.x, i);
      for (int p = 0; p < a.w.panels; ++p) {
        float* out = n_tile + i * kNTile + kPanelN * p;
        const typename V::F y = V::multiply(V::load(out), V::load(row_scale + kPanelN * p));
        V::store(out, V::multiply(y, V::broadcast_f32(a.x.row_scale + row)));
      }
    }
}

// A GemmFn.
template <class V, class C>
static void gemm(const GemmArgs& a) {
  prefetch_row_scales<V>(a.w);
  int panel = 0;
  // With few rows, one panel at a time has too few independent sums in flight.
  if constexpr (V::kTilePanels == 1 && V::kTwoPanelM > 0)
    if (a.x.m <= V::kTwoPanelM && a.w.panels == 2) {
      run_n_tile<V, C, 2>(a, 0);
      panel = 2;
    }
  for (; panel + V::kTilePanels <= a.w.panels; panel += V::kTilePanels) run_n_tile<V, C, V::kTilePanels>(a, panel);
  if constexpr (V::kTilePanels > 1)
    for (; panel < a.w.panels; ++panel) run_n_tile<V, C, 1>(a, panel);
  scale_outputs<V>(a);
}

}  // namespace
}  // namespace sluice::kernels::cpu
