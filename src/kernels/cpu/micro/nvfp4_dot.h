// SPDX-License-Identifier: Apache-2.0
// NVFP4 weights by NVFP4 inputs as integers: exact 16-term sums in int32 (vpdpbusd, four products a lane and
// instruction), then two float operations a group. Needs AVX-512 VNNI. V: the policy that says how to prefetch and
// whether every tile of rows decodes.
//
// A panel's group of 16 k is two 64-byte blocks. Their low and high nibbles, as bytes, hold for each row
//   block 0: (k0 k4 k1 k5) (k2 k6 k3 k7)     block 1: the same + 8
// and Nvfp4Group.codes hold the inputs in that order.
#pragma once

#include "kernels/cpu/micro/tile.h"

namespace sluice::kernels::cpu {
namespace {

struct DotGroup {
  __m512i w[4];  // 2w + 12
  __m512 scale;
};

SLUICE_INLINE DotGroup decode_dot_group(const uint8_t* codes, int64_t block_stride, const uint8_t* scales) {
  // 2 * {0, .5, 1, 1.5, 2, 3, 4, 6, -0, ...} + 12
  const __m512i table =
      _mm512_broadcast_i32x4(_mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
  const __m512i low = _mm512_set1_epi8(0x0f);
  const __m512i a = _mm512_loadu_si512(codes), b = _mm512_loadu_si512(codes + block_stride);
  DotGroup g;
  g.w[0] = _mm512_shuffle_epi8(table, _mm512_and_si512(a, low));
  g.w[1] = _mm512_shuffle_epi8(table, _mm512_and_si512(_mm512_srli_epi16(a, 4), low));
  g.w[2] = _mm512_shuffle_epi8(table, _mm512_and_si512(b, low));
  g.w[3] = _mm512_shuffle_epi8(table, _mm512_and_si512(_mm512_srli_epi16(b, 4), low));
  g.scale = Avx512::scale_e4m3(scales);
  return g;
}

SLUICE_INLINE __m512 add_dot_group(const DotGroup& g, const uint8_t* x, __m512 acc) {
  const auto word = [x](int i) __attribute__((always_inline)) {
    int32_t v;
    __builtin_memcpy(&v, x + 4 * i, 4);
    return _mm512_set1_epi32(v);
  };
  __m512i sum = word(5);  // Nvfp4Group::offset
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) sum = dot_bytes(sum, g.w[i], word(i));
  // A product of two e4m3 scales is exact in float32: one rounding a group.
  const __m512 scale = _mm512_mul_ps(g.scale, _mm512_castsi512_ps(word(4)));
  return _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), scale, acc);
}

template <class V, bool kDecoded, int kRows, int kPanels>
static void run_dot_tile(const Tile& t) {
  const uint8_t* x[kRows];
#pragma GCC unroll 8
  for (int m = 0; m < kRows; ++m) x[m] = t.x[m];
  __m512 acc[kRows][kPanels];
#pragma GCC unroll 8
  for (int m = 0; m < kRows; ++m)
#pragma GCC unroll 2
    for (int p = 0; p < kPanels; ++p)
      acc[m][p] = t.first ? _mm512_setzero_ps() : _mm512_loadu_ps(t.out + m * kTileCols + 16 * p);
  const uint8_t* codes = t.codes;
  const uint8_t* scales = t.scales;
  const uint8_t* ahead = t.ahead;
  for (int64_t g = 0, at = 0; g < t.k / 16; ++g, at += sizeof(Nvfp4Group)) {
    DotGroup w[kPanels];
#pragma GCC unroll 2
    for (int p = 0; p < kPanels; ++p) {
      if constexpr (kDecoded) {
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) w[p].w[i] = _mm512_load_si512(codes + 320 * p + 64 * i);
        w[p].scale = _mm512_load_ps(codes + 320 * p + 256);
      } else {
        w[p] = decode_dot_group(codes + 64 * p, t.block_stride, scales + 16 * p);
      }
    }
    if constexpr (!kDecoded) {
      prefetch_block<V, kPanels>(codes, t.stream);
      prefetch_block<V, kPanels>(codes + t.block_stride, t.stream);
      Avx512::prefetch_near(scales + kScalesAhead);
    } else if (ahead < t.ahead_end) {
      Avx512::prefetch_far(in_stream(line_ahead<V>(ahead), t.stream));
      ahead += 64;
    }
#pragma GCC unroll 8
    for (int m = 0; m < kRows; ++m)
#pragma GCC unroll 2
      for (int p = 0; p < kPanels; ++p) acc[m][p] = add_dot_group(w[p], x[m] + at, acc[m][p]);
    codes += kDecoded ? 320 * kPanels : 2 * t.block_stride;
    scales += t.scale_stride;
  }
#pragma GCC unroll 8
  for (int m = 0; m < kRows; ++m)
#pragma GCC unroll 2
    for (int p = 0; p < kPanels; ++p) _mm512_storeu_ps(t.out + m * kTileCols + 16 * p, acc[m][p]);
}

template <class V, bool kDecoded, int kPanels>
static void run_dot_rows(const Tile& t, int rows) {
  using Run = void (*)(const Tile&);
  static constexpr Run kRun[] = {run_dot_tile<V, kDecoded, 1, kPanels>, run_dot_tile<V, kDecoded, 2, kPanels>,
                                 run_dot_tile<V, kDecoded, 3, kPanels>, run_dot_tile<V, kDecoded, 4, kPanels>,
                                 run_dot_tile<V, kDecoded, 5, kPanels>, run_dot_tile<V, kDecoded, 6, kPanels>,
                                 run_dot_tile<V, kDecoded, 7, kPanels>, run_dot_tile<V, kDecoded, 8, kPanels>};
  kRun[rows - 1](t);
}

// A chunk of k after the other is decoded to `scratch`, and all tiles of rows run over it.
template <class V, int kPanels>
static void run_dot_chunks(const Tile& unit, int m, uint8_t* scratch) {
  constexpr int64_t kDotChunk = 512;  // k; 20 KiB of decoded weights
  static_assert(kDotChunk / 16 * 320 * kPanels <= kScratchBytes);
  const RowTiles<V> tiles(m);
  for (int64_t k0 = 0; k0 < unit.k; k0 += kDotChunk) {
    const int64_t k = unit.k - k0 < kDotChunk ? unit.k - k0 : kDotChunk;
    const uint8_t* codes = unit.codes + k0 / 8 * unit.block_stride;
    uint8_t* out = scratch;
    for (int64_t g = 0; g < k / 16; ++g)
#pragma GCC unroll 2
      for (int p = 0; p < kPanels; ++p, out += 320) {
        const DotGroup w = decode_dot_group(codes + 2 * g * unit.block_stride + 64 * p, unit.block_stride,
                                            unit.scales + (k0 / 16 + g) * unit.scale_stride + 16 * p);
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) _mm512_store_si512(out + 64 * i, w.w[i]);
        _mm512_store_ps(out + 256, w.scale);
      }
    Tile chunk = unit;
    chunk.ahead = codes;
    chunk.ahead_end = codes + k / 8 * unit.block_stride;
    chunk.codes = scratch;
    chunk.k = k;
    chunk.first = k0 == 0;
    for (int i = 0; i < tiles.tiles; ++i) {
      const int begin = tiles.begin(i), end = tiles.begin(i + 1);
      const uint8_t* rows[8];
      for (int r = begin; r < end; ++r)
        rows[r - begin] = unit.x[r] + k0 / 16 * static_cast<int64_t>(sizeof(Nvfp4Group));
      Tile tile = chunk;
      tile.x = rows;
      tile.out = unit.out + static_cast<int64_t>(begin) * kTileCols;
      run_dot_rows<V, true, kPanels>(tile, end - begin);
      chunk.ahead += k / 16 * 64;  // a line a group
    }
  }
}

template <class V, int kPanels>
static void run_dot_unit(const GemmArgs& a) {
  const uint8_t* x[kMaxRows];
  for (int i = 0; i < a.m; ++i) x[i] = a.x + (a.x_rows != nullptr ? a.x_rows[i] : i) * a.x_stride;
  Tile t{};
  t.block_stride = 64 * kPanels;
  t.scale_stride = 16 * kPanels;
  t.codes = a.codes;
  t.scales = a.scales;
  t.k = a.k;
  t.x = x;
  t.out = a.out;
  t.first = true;
  t.stream = a.stream;
  const RowTiles<V> tiles(a.m);
  if constexpr (!reads_packed<V>())
    if (tiles.tiles > 1) return run_dot_chunks<V, kPanels>(t, a.m, a.scratch);
  for (int i = 0; i < tiles.tiles; ++i) {
    const int begin = tiles.begin(i);
    Tile tile = t;
    tile.x += begin;
    tile.out += static_cast<int64_t>(begin) * kTileCols;
    run_dot_rows<V, false, kPanels>(tile, tiles.begin(i + 1) - begin);
  }
}

template <class V>
static void gemm_nvfp4_dot(const GemmArgs& a) {
  a.panels == 2 ? run_dot_unit<V, 2>(a) : run_dot_unit<V, 1>(a);
  scale_outputs<Avx512>(a);
}

}  // namespace
}  // namespace sluice::kernels::cpu
