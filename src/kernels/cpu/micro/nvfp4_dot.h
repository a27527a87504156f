// SPDX-License-Identifier: Apache-2.0
// The GEMM kernel of NVFP4 weights by NVFP4 inputs, as integers. Twice an e2m1 value is an integer, so the sum of the
// 16 products with one scale is exact. Two float operations per group of 16 k follow. The policy V (vector_policy.h)
// says how bytes are multiplied and summed, how to prefetch, and whether every tile decodes.
//
// A panel's group of 16 k is two 64-byte blocks. The low and the high nibbles of a block, as bytes, hold per weight row
//   block 0: (k0 k4 k1 k5) and (k2 k6 k3 k7)     block 1: the same + 8
// Nvfp4Group::codes holds the inputs in that order.
#pragma once

#include <utility>

#include "kernels/cpu/micro/gemm.h"

namespace sluice::kernels::cpu {
namespace {

// The decoded weights of one group of 16 k of one panel.
template <class V>
struct DotGroup {
  typename V::Bytes w[4];  // 2w + 12
  typename V::F scale;
};

// codes: the first of the group's two blocks, block_stride bytes apart. scales: 16 block scales.
template <class V>
SLUICE_INLINE DotGroup<V> decode_dot_group(const uint8_t* codes, int64_t block_stride, const uint8_t* scales) {
  // 2 * {0, .5, 1, 1.5, 2, 3, 4, 6, -0, ...} + 12
  const __m128i table = _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0);
  DotGroup<V> g;
#pragma GCC unroll 2
  for (int block = 0; block < 2; ++block)
    V::look_up_nibbles(table, V::load_bytes(codes + block * block_stride), g.w[2 * block], g.w[2 * block + 1]);
  g.scale = V::scale_e4m3(scales);
  return g;
}

// acc + the group times the input group (Nvfp4Group) at `x`.
template <class V>
SLUICE_INLINE typename V::F add_dot_group(const DotGroup<V>& g, const uint8_t* x, typename V::F acc) {
  int32_t offset;
  __builtin_memcpy(&offset, x + offsetof(Nvfp4Group, offset), 4);
  // A product of two e4m3 scales is exact in float32, so there is one rounding per group.
  const typename V::F scale = V::multiply(g.scale, V::broadcast_f32(x + offsetof(Nvfp4Group, scale)));
  return V::multiply_add_f32(V::dot_16(g.w, x, offset), scale, acc);
}

inline constexpr int kDecodedGroupBytes = 320;  // of a panel: 4 x 64 bytes of weights, 16 float scales

// run_tile() of register_tile.h for integers. kDecoded: the weights are DotGroups in scratch memory.
template <class V, bool kDecoded, int kM, int kPanels>
static void run_dot_tile(const RegisterTile& t) {
  const uint8_t* x[kM];
#pragma GCC unroll 8
  for (int m = 0; m < kM; ++m) x[m] = t.x[m];
  typename V::F acc[kM][kPanels];
#pragma GCC unroll 8
  for (int m = 0; m < kM; ++m)
#pragma GCC unroll 2
    for (int p = 0; p < kPanels; ++p) acc[m][p] = t.from_zero ? V::zero() : V::load(t.out + m * kNTile + 16 * p);
  const uint8_t* codes = t.codes;
  const uint8_t* scales = t.scales;
  const uint8_t* ahead = t.ahead;
  for (int64_t g = 0, at = 0; g < t.k / 16; ++g, at += sizeof(Nvfp4Group)) {
    DotGroup<V> w[kPanels];
#pragma GCC unroll 2
    for (int p = 0; p < kPanels; ++p) {
      if constexpr (kDecoded) {
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) w[p].w[i] = V::load_bytes(codes + kDecodedGroupBytes * p + 64 * i);
        w[p].scale = V::load(reinterpret_cast<const float*>(codes + kDecodedGroupBytes * p + 256));
      } else {
        w[p] = decode_dot_group<V>(codes + 64 * p, t.block_stride, scales + 16 * p);
      }
    }
    if constexpr (!kDecoded) {
      prefetch_block<V, kPanels>(codes, t.stream);
      prefetch_block<V, kPanels>(codes + t.block_stride, t.stream);
      V::prefetch_near(scales + kScalesPrefetchBytes);
    } else if (ahead < t.ahead_end) {
      V::prefetch_far(stream_address(line_ahead<V>(ahead), t.stream));
      ahead += 64;
    }
#pragma GCC unroll 8
    for (int m = 0; m < kM; ++m)
#pragma GCC unroll 2
      for (int p = 0; p < kPanels; ++p) acc[m][p] = add_dot_group<V>(w[p], x[m] + at, acc[m][p]);
    codes += kDecoded ? kDecodedGroupBytes * kPanels : 2 * t.block_stride;
    scales += t.scale_stride;
  }
#pragma GCC unroll 8
  for (int m = 0; m < kM; ++m)
#pragma GCC unroll 2
    for (int p = 0; p < kPanels; ++p) V::store(t.out + m * kNTile + 16 * p, acc[m][p]);
}

// Runs the tile with kM = rows.
template <class V, bool kDecoded, int kPanels, int... kLess>
SLUICE_INLINE void dispatch_dot_m(const RegisterTile& t, int rows, std::integer_sequence<int, kLess...>) {
  using Run = void (*)(const RegisterTile&);
  static constexpr Run kRun[] = {run_dot_tile<V, kDecoded, kLess + 1, kPanels>...};
  kRun[rows - 1](t);
}
template <class V, bool kDecoded, int kPanels>
static void dispatch_dot_m(const RegisterTile& t, int rows) {
  dispatch_dot_m<V, kDecoded, kPanels>(t, rows, std::make_integer_sequence<int, tile_m<V, kPanels>()>());
}

// One chunk of k after the other: it is decoded to `scratch`, and all row tiles run over it.
template <class V, int kPanels>
static void run_dot_chunks(const RegisterTile& whole, int m, uint8_t* scratch) {
  constexpr int64_t kDotChunkK = 512;  // 10 KiB of decoded weights per panel
  static_assert(kDotChunkK / 16 * kDecodedGroupBytes * kPanels <= kScratchBytes);
  const RowTiles<V> tiles(m);
  for (int64_t k0 = 0; k0 < whole.k; k0 += kDotChunkK) {
    const int64_t k = whole.k - k0 < kDotChunkK ? whole.k - k0 : kDotChunkK;
    const uint8_t* codes = whole.codes + k0 / 8 * whole.block_stride;
    uint8_t* out = scratch;
    for (int64_t g = 0; g < k / 16; ++g)
#pragma GCC unroll 2
      for (int p = 0; p < kPanels; ++p, out += kDecodedGroupBytes) {
        const DotGroup<V> w = decode_dot_group<V>(codes + 2 * g * whole.block_stride + 64 * p, whole.block_stride,
                                                  whole.scales + (k0 / 16 + g) * whole.scale_stride + 16 * p);
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) V::store_bytes(out + 64 * i, w.w[i]);
        V::store(reinterpret_cast<float*>(out + 256), w.scale);
      }
    RegisterTile chunk = whole;
    chunk.ahead = codes;
    chunk.ahead_end = codes + k / 8 * whole.block_stride;
    chunk.codes = scratch;
    chunk.k = k;
    chunk.from_zero = k0 == 0;
    for (int i = 0; i < tiles.tiles; ++i) {
      const int begin = tiles.begin(i), end = tiles.begin(i + 1);
      const uint8_t* rows[8];
      for (int r = begin; r < end; ++r)
        rows[r - begin] = whole.x[r] + k0 / 16 * static_cast<int64_t>(sizeof(Nvfp4Group));
      RegisterTile tile = chunk;
      tile.x = rows;
      tile.out = whole.out + static_cast<int64_t>(begin) * kNTile;
      dispatch_dot_m<V, true, kPanels>(tile, end - begin);
      chunk.ahead += k / 16 * 64;  // one line per group
    }
  }
}

// Panels [panel, panel + kPanels) of one N-tile.
template <class V, int kPanels>
static void run_dot_n_tile(const GemmArgs& a, int panel) {
  const uint8_t* x[kMaxM];
  for (int i = 0; i < a.x.m; ++i) x[i] = a.x.data + packed_row(a.x, i) * a.x.stride;
  RegisterTile t{};
  t.block_stride = 64 * a.w.panels;
  t.scale_stride = 16 * a.w.panels;
  t.codes = a.w.codes + 64 * panel;
  t.scales = a.w.scales + 16 * panel;
  t.k = a.w.k;
  t.x = x;
  t.out = a.out + kPanelN * panel;
  t.from_zero = true;
  t.stream = a.task.stream;
  const RowTiles<V> tiles(a.x.m, tile_m<V, kPanels>());
  if constexpr (!decodes_in_every_tile<V>() && kPanels <= V::kTilePanels)
    if (tiles.tiles > 1) return run_dot_chunks<V, kPanels>(t, a.x.m, a.scratch);
  for (int i = 0; i < tiles.tiles; ++i) {
    const int begin = tiles.begin(i);
    RegisterTile tile = t;
    tile.x += begin;
    tile.out += static_cast<int64_t>(begin) * kNTile;
    dispatch_dot_m<V, false, kPanels>(tile, tiles.begin(i + 1) - begin);
  }
}

// A GemmFn.
template <class V>
static void gemm_nvfp4_dot(const GemmArgs& a) {
  int panel = 0;
  // As gemm() does: with few rows, one panel at a time has too few independent sums in flight.
  if constexpr (V::kTilePanels == 1 && V::kTwoPanelM > 0)
    if (a.x.m <= V::kTwoPanelM && a.w.panels == 2) {
      run_dot_n_tile<V, 2>(a, 0);
      panel = 2;
    }
  for (; panel + V::kTilePanels <= a.w.panels; panel += V::kTilePanels) run_dot_n_tile<V, V::kTilePanels>(a, panel);
  if constexpr (V::kTilePanels > 1)
    for (; panel < a.w.panels; ++panel) run_dot_n_tile<V, 1>(a, panel);
  scale_outputs<V>(a);
}

}  // namespace
}  // namespace sluice::kernels::cpu
