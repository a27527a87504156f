// SPDX-License-Identifier: Apache-2.0
// The GEMM kernel of NVFP4 weights by NVFP4 inputs, as integers. vpdpbusd sums four products per lane, so the sum of 16
// products is exact in int32. Two float operations per group of 16 k follow. Needs AVX-512 VNNI. The policy V says how
// to prefetch and whether every tile decodes.
//
// A panel's group of 16 k is two 64-byte blocks. The low and the high nibbles of a block, as bytes, hold per weight row
//   block 0: (k0 k4 k1 k5) and (k2 k6 k3 k7)     block 1: the same + 8
// Nvfp4Group::codes holds the inputs in that order.
#pragma once

#include "kernels/cpu/micro/avx512_vector.h"
#include "kernels/cpu/micro/gemm.h"

namespace sluice::kernels::cpu {
namespace {

// The decoded weights of one group of 16 k of one panel.
struct DotGroup {
  __m512i w[4];  // 2w + 12
  __m512 scale;
};

// codes: the first of the group's two blocks, block_stride bytes apart. scales: 16 block scales.
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

// acc + the group times the input group (Nvfp4Group) at `x`.
SLUICE_INLINE __m512 add_dot_group(const DotGroup& g, const uint8_t* x, __m512 acc) {
  const auto word = [x](int i) __attribute__((always_inline)) {
    int32_t v;
    __builtin_memcpy(&v, x + 4 * i, 4);
    return _mm512_set1_epi32(v);
  };
  __m512i sum = word(5);  // Nvfp4Group::offset
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) sum = dot_bytes(sum, g.w[i], word(i));
  // A product of two e4m3 scales is exact in float32, so there is one rounding per group.
  const __m512 scale = _mm512_mul_ps(g.scale, _mm512_castsi512_ps(word(4)));
  return _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), scale, acc);
}

inline constexpr int kDecodedGroupBytes = 320;  // of a panel: 4 x 64 bytes of weights, 16 float scales

// run_tile() of register_tile.h for integers. kDecoded: the weights are DotGroups in scratch memory.
template <class V, bool kDecoded, int kM, int kPanels>
static void run_dot_tile(const RegisterTile& t) {
  const uint8_t* x[kM];
#pragma GCC unroll 8
  for (int m = 0; m < kM; ++m) x[m] = t.x[m];
  __m512 acc[kM][kPanels];
#pragma GCC unroll 8
  for (int m = 0; m < kM; ++m)
#pragma GCC unroll 2
    for (int p = 0; p < kPanels; ++p)
      acc[m][p] = t.from_zero ? _mm512_setzero_ps() : _mm512_loadu_ps(t.out + m * kNTile + 16 * p);
  const uint8_t* codes = t.codes;
  const uint8_t* scales = t.scales;
  const uint8_t* ahead = t.ahead;
  for (int64_t g = 0, at = 0; g < t.k / 16; ++g, at += sizeof(Nvfp4Group)) {
    DotGroup w[kPanels];
#pragma GCC unroll 2
    for (int p = 0; p < kPanels; ++p) {
      if constexpr (kDecoded) {
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) w[p].w[i] = _mm512_load_si512(codes + kDecodedGroupBytes * p + 64 * i);
        w[p].scale = _mm512_load_ps(codes + kDecodedGroupBytes * p + 256);
      } else {
        w[p] = decode_dot_group(codes + 64 * p, t.block_stride, scales + 16 * p);
      }
    }
    if constexpr (!kDecoded) {
      prefetch_block<V, kPanels>(codes, t.stream);
      prefetch_block<V, kPanels>(codes + t.block_stride, t.stream);
      Avx512::prefetch_near(scales + kScalesPrefetchBytes);
    } else if (ahead < t.ahead_end) {
      Avx512::prefetch_far(stream_address(line_ahead<V>(ahead), t.stream));
      ahead += 64;
    }
#pragma GCC unroll 8
    for (int m = 0; m < kM; ++m)
#pragma GCC unroll 2
      for (int p = 0; p < kPanels; ++p) acc[m][p] = add_dot_group(w[p], x[m] + at, acc[m][p]);
    codes += kDecoded ? kDecodedGroupBytes * kPanels : 2 * t.block_stride;
    scales += t.scale_stride;
  }
#pragma GCC unroll 8
  for (int m = 0; m < kM; ++m)
#pragma GCC unroll 2
    for (int p = 0; p < kPanels; ++p) _mm512_storeu_ps(t.out + m * kNTile + 16 * p, acc[m][p]);
}

// Runs the tile with kM = rows.
template <class V, bool kDecoded, int kPanels>
static void dispatch_dot_m(const RegisterTile& t, int rows) {
  using Run = void (*)(const RegisterTile&);
  static constexpr Run kRun[] = {run_dot_tile<V, kDecoded, 1, kPanels>, run_dot_tile<V, kDecoded, 2, kPanels>,
                                 run_dot_tile<V, kDecoded, 3, kPanels>, run_dot_tile<V, kDecoded, 4, kPanels>,
                                 run_dot_tile<V, kDecoded, 5, kPanels>, run_dot_tile<V, kDecoded, 6, kPanels>,
                                 run_dot_tile<V, kDecoded, 7, kPanels>, run_dot_tile<V, kDecoded, 8, kPanels>};
  kRun[rows - 1](t);
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
        const DotGroup w = decode_dot_group(codes + 2 * g * whole.block_stride + 64 * p, whole.block_stride,
                                            whole.scales + (k0 / 16 + g) * whole.scale_stride + 16 * p);
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) _mm512_store_si512(out + 64 * i, w.w[i]);
        _mm512_store_ps(out + 256, w.scale);
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

template <class V, int kPanels>
static void run_dot_n_tile(const GemmArgs& a) {
  const uint8_t* x[kMaxM];
  for (int i = 0; i < a.x.m; ++i) x[i] = a.x.data + packed_row(a.x, i) * a.x.stride;
  RegisterTile t{};
  t.block_stride = 64 * kPanels;
  t.scale_stride = 16 * kPanels;
  t.codes = a.w.codes;
  t.scales = a.w.scales;
  t.k = a.w.k;
  t.x = x;
  t.out = a.out;
  t.from_zero = true;
  t.stream = a.task.stream;
  const RowTiles<V> tiles(a.x.m);
  if constexpr (!decodes_in_every_tile<V>())
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
  a.w.panels == 2 ? run_dot_n_tile<V, 2>(a) : run_dot_n_tile<V, 1>(a);
  scale_outputs<Avx512>(a);
}

}  // namespace
}  // namespace sluice::kernels::cpu
