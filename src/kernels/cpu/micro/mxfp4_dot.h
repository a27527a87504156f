// SPDX-License-Identifier: Apache-2.0
// MXFP4 weights by bfloat16 inputs as integers (vpdpwssd, two products a lane and instruction): the sum of each 32
// products is exact in int32, then rounded once. What an input block cannot hold as integers (micro.h: FixedRow) is
// added one by one. Needs AVX-512 VNNI.
//
// Every output is one chain of fused multiply-adds: the blocks of a chunk, then its rest, then the next chunk, whatever
// the number of rows (micro/tile.h says why).
#pragma once

#include "kernels/cpu/micro/tile.h"

namespace sluice::kernels::cpu {
namespace {

inline constexpr int64_t kFixedPairs = kFixedBlock / 2;
inline constexpr int kFixedPackedRows = 6;  // up to here codes are decoded in registers
inline constexpr int kFixedLines = 2;       // packed lines that a tile of decoded weights brings to L2 a block

// 2 * {0, .5, 1, 1.5, 2, 3, 4, 6, -0, ...}
SLUICE_INLINE __m512i doubled_e2m1() {
  return _mm512_broadcast_i32x4(_mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12));
}

// 8 k of a panel: w[j] = (k 2j, k 2j+1) of each row, doubled and times 256 (kFixedFactor), as a shift alone widens
// bytes.
struct WordPairs {
  __m512i w[4];
};
SLUICE_INLINE WordPairs decode_pairs(const uint8_t* codes) {
  const __m512i low = _mm512_set1_epi8(0x0f), upper = _mm512_set1_epi16(static_cast<int16_t>(0xff00));
  const __m512i raw = _mm512_loadu_si512(codes);
  const __m512i even = _mm512_shuffle_epi8(doubled_e2m1(), _mm512_and_si512(raw, low));
  const __m512i odd = _mm512_shuffle_epi8(doubled_e2m1(), _mm512_and_si512(_mm512_srli_epi16(raw, 4), low));
  return {{_mm512_slli_epi16(even, 8), _mm512_slli_epi16(odd, 8), _mm512_and_si512(even, upper),
           _mm512_and_si512(odd, upper)}};
}
// The weights of one k as int32, on the same scale.
SLUICE_INLINE __m512i decode_one(const uint8_t* codes, uint32_t k) {
  const uint32_t left = 28 - 16 * (k % 2) - 4 * (k / 2);  // brings the nibble to the top
  const __m512i top = _mm512_sll_epi32(_mm512_loadu_si512(codes), _mm_cvtsi32_si128(static_cast<int>(left)));
  const __m512i byte = _mm512_shuffle_epi8(doubled_e2m1(), _mm512_srli_epi32(top, 28));
  return _mm512_srai_epi32(_mm512_slli_epi32(byte, 24), 16);
}

SLUICE_INLINE __m512i broadcast_i32(const void* p) {
  int32_t v;
  __builtin_memcpy(&v, p, 4);
  return _mm512_set1_epi32(v);
}

// t.x: rows at the chunk's first code, t.x_group: at its first scale.
template <bool kDecoded, int kRows, int kPanels>
static void run_fixed_tile(const Tile& t) {
  constexpr bool kInRegisters = kRows * kPanels <= (kDecoded ? 12 : 8);
  const uint8_t* x[kRows];
#pragma GCC unroll 8
  for (int m = 0; m < kRows; ++m) x[m] = t.x[m];
  __m512 acc[kRows][kPanels];
#pragma GCC unroll 8
  for (int m = 0; m < kRows; ++m)
#pragma GCC unroll 2
    for (int p = 0; p < kPanels; ++p) {
      float* out = t.out + m * kTileCols + 16 * p;
      if (kInRegisters) acc[m][p] = t.first ? _mm512_setzero_ps() : _mm512_loadu_ps(out);
      if (!kInRegisters && t.first) _mm512_storeu_ps(out, _mm512_setzero_ps());
    }
  const uint8_t* codes = t.codes;
  const uint8_t* scales = t.scales;
  const uint8_t* ahead = t.ahead;
  for (int64_t b = 0; b < t.k / kFixedBlock; ++b) {
    __m512i sum[kRows][kPanels];
#pragma GCC unroll 8
    for (int m = 0; m < kRows; ++m)
#pragma GCC unroll 2
      for (int p = 0; p < kPanels; ++p) sum[m][p] = _mm512_setzero_si512();
    const auto add_pair = [&](const __m512i(&w)[kPanels], int64_t pair) __attribute__((always_inline)) {
#pragma GCC unroll 8
      for (int m = 0; m < kRows; ++m) {
        const __m512i v = broadcast_i32(x[m] + 4 * (b * kFixedPairs + pair));
#pragma GCC unroll 2
        for (int p = 0; p < kPanels; ++p) sum[m][p] = dot_words(sum[m][p], w[p], v);
      }
    };
    if constexpr (kDecoded) {
      for (int i = 0; i < kFixedLines && ahead < t.ahead_end; ++i, ahead += 64)
        Avx512::prefetch_far(in_stream(page_ahead(ahead), t.stream));
#pragma GCC unroll 4
      for (int64_t pair = 0; pair < kFixedPairs; ++pair) {
        __m512i w[kPanels];
#pragma GCC unroll 2
        for (int p = 0; p < kPanels; ++p) w[p] = _mm512_load_si512(codes + 64 * (pair * kPanels + p));
        add_pair(w, pair);
      }
      codes += 64 * kFixedPairs * kPanels;
    } else {
      Avx512::prefetch_near(scales + kScalesAhead);
#pragma GCC unroll 1
      for (int64_t pair = 0; pair < kFixedPairs; pair += 4) {
        WordPairs raw[kPanels];
#pragma GCC unroll 2
        for (int p = 0; p < kPanels; ++p) raw[p] = decode_pairs(codes + 64 * p);
        prefetch_block<Avx512, kPanels>(codes, t.stream);
#pragma GCC unroll 4
        for (int j = 0; j < 4; ++j) {
          __m512i w[kPanels];
#pragma GCC unroll 2
          for (int p = 0; p < kPanels; ++p) w[p] = raw[p].w[j];
          add_pair(w, pair + j);
        }
        codes += t.block_stride;
      }
    }
#pragma GCC unroll 2
    for (int p = 0; p < kPanels; ++p) {
      const __m512 ws = kDecoded ? _mm512_load_ps(scales + 64 * p) : Avx512::scale_e8m0(scales + 16 * p);
#pragma GCC unroll 8
      for (int m = 0; m < kRows; ++m) {
        const __m512 part = _mm512_mul_ps(_mm512_cvtepi32_ps(sum[m][p]), _mm512_set1_ps(t.x_group[m][b]));
        if constexpr (kInRegisters) {
          acc[m][p] = _mm512_fmadd_ps(part, ws, acc[m][p]);
        } else {
          float* out = t.out + m * kTileCols + 16 * p;
          _mm512_storeu_ps(out, _mm512_fmadd_ps(part, ws, _mm512_loadu_ps(out)));
        }
      }
    }
    scales += t.scale_stride;
  }
  if constexpr (kInRegisters) {
#pragma GCC unroll 8
    for (int m = 0; m < kRows; ++m)
#pragma GCC unroll 2
      for (int p = 0; p < kPanels; ++p) _mm512_storeu_ps(t.out + m * kTileCols + 16 * p, acc[m][p]);
  }
}

// Adds the rest of one row in the chunk of `t` to `out`.
template <bool kDecoded, int kPanels>
SLUICE_INLINE void add_fixed_rest(const Tile& t, const FixedRest* rest, const FixedRest* end, float* out) {
  if (rest == end) return;
  __m512 acc[kPanels];
#pragma GCC unroll 2
  for (int p = 0; p < kPanels; ++p) acc[p] = _mm512_loadu_ps(out + 16 * p);
  for (; rest < end; ++rest) {
    const uint32_t k = rest->k;
    const __m512 value = _mm512_set1_ps(rest->value);
    const uint8_t* scale = t.scales + rest->block * t.scale_stride;
#pragma GCC unroll 2
    for (int p = 0; p < kPanels; ++p) {
      // Decoded: the upper words of dwords that start at the pair, or 2 bytes before it.
      const uint8_t* at = t.codes + 64 * kPanels * (k / 2) + 64 * p;
      const __m512i w = kDecoded ? _mm512_srai_epi32(_mm512_loadu_si512(at - 2 + 2 * (k % 2)), 16)
                                 : decode_one(t.codes + k / 8 * t.block_stride + 64 * p, k % 8);
      const __m512 ws = kDecoded ? _mm512_load_ps(scale + 64 * p) : Avx512::scale_e8m0(scale + 16 * p);
      const __m512 part = _mm512_mul_ps(_mm512_cvtepi32_ps(w), value);
      acc[p] = _mm512_fmadd_ps(part, ws, acc[p]);
    }
  }
#pragma GCC unroll 2
  for (int p = 0; p < kPanels; ++p) _mm512_storeu_ps(out + 16 * p, acc[p]);
}

template <bool kDecoded, int kPanels>
static void run_fixed_rows(const Tile& t, int rows) {
  using Run = void (*)(const Tile&);
  static constexpr Run kRun[] = {run_fixed_tile<kDecoded, 1, kPanels>, run_fixed_tile<kDecoded, 2, kPanels>,
                                 run_fixed_tile<kDecoded, 3, kPanels>, run_fixed_tile<kDecoded, 4, kPanels>,
                                 run_fixed_tile<kDecoded, 5, kPanels>, run_fixed_tile<kDecoded, 6, kPanels>,
                                 run_fixed_tile<kDecoded, 7, kPanels>, run_fixed_tile<kDecoded, 8, kPanels>};
  kRun[rows - 1](t);
}

// Rows [begin, end) of the chunk at k0.
template <bool kDecoded, int kPanels>
SLUICE_INLINE void run_fixed_chunk(const GemmArgs& a, const Tile& chunk, const uint8_t* const* x, int64_t k0, int begin,
                                   int end) {
  const FixedRow at(a.k);
  const uint8_t* rows[8];
  const float* scales[8];
  for (int r = begin; r < end; ++r) {
    rows[r - begin] = x[r] + 2 * k0;
    scales[r - begin] = reinterpret_cast<const float*>(x[r] + at.scales) + k0 / kFixedBlock;
  }
  Tile tile = chunk;
  tile.x = rows;
  tile.x_group = scales;
  tile.out = a.out + static_cast<int64_t>(begin) * kTileCols;
  run_fixed_rows<kDecoded, kPanels>(tile, end - begin);
  for (int r = begin; r < end; ++r) {
    const int32_t* starts = reinterpret_cast<const int32_t*>(x[r] + at.starts) + k0 / kFixedChunk;
    const FixedRest* rest = reinterpret_cast<const FixedRest*>(x[r] + at.rest);
    add_fixed_rest<kDecoded, kPanels>(chunk, rest + starts[0], rest + starts[1],
                                      a.out + static_cast<int64_t>(r) * kTileCols);
  }
}

template <int kPanels>
SLUICE_INLINE void decode_fixed_chunk(const Tile& t, uint8_t* words, uint8_t* scales) {
  const uint8_t* codes = t.codes;
  for (int64_t k = 0; k < t.k; k += 8, codes += t.block_stride, words += 256 * kPanels)
#pragma GCC unroll 2
    for (int p = 0; p < kPanels; ++p) {
      const WordPairs raw = decode_pairs(codes + 64 * p);
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) _mm512_store_si512(words + 64 * (kPanels * j + p), raw.w[j]);
    }
  for (int64_t b = 0; b < t.k / kFixedBlock; ++b)
#pragma GCC unroll 2
    for (int p = 0; p < kPanels; ++p)
      _mm512_store_ps(scales + 64 * (b * kPanels + p), Avx512::scale_e8m0(t.scales + b * t.scale_stride + 16 * p));
}

template <int kPanels>
static void run_fixed_unit(const GemmArgs& a) {
  constexpr int64_t kWordBytes = kFixedChunk / 2 * 64 * kPanels;
  static_assert(64 + kWordBytes + kFixedChunk / kFixedBlock * 64 * kPanels <= kScratchBytes);
  uint8_t* const words = a.scratch + 64;  // add_fixed_rest() reads 2 bytes before
  uint8_t* const scales = words + kWordBytes;
  const uint8_t* x[kMaxRows];
  for (int i = 0; i < a.m; ++i) x[i] = a.x + (a.x_rows != nullptr ? a.x_rows[i] : i) * a.x_stride;
  Tile t{};
  t.block_stride = 64 * kPanels;
  t.scale_stride = 16 * kPanels;
  t.stream = {a.stream_end, a.stream_jump};
  const RowTiles<Avx512> tiles(a.m);
  for (int64_t k0 = 0; k0 < a.k; k0 += kFixedChunk) {
    Tile chunk = t;
    chunk.k = a.k - k0 < kFixedChunk ? a.k - k0 : kFixedChunk;
    chunk.codes = a.codes + k0 / 8 * t.block_stride;
    chunk.scales = a.scales + k0 / kFixedBlock * t.scale_stride;
    chunk.first = k0 == 0;
    if (a.m <= kFixedPackedRows) {
      run_fixed_chunk<false, kPanels>(a, chunk, x, k0, 0, a.m);
      continue;
    }
    decode_fixed_chunk<kPanels>(chunk, words, scales);
    chunk.ahead = chunk.codes;
    chunk.ahead_end = chunk.codes + chunk.k / 8 * t.block_stride;
    chunk.codes = words;
    chunk.scales = scales;
    chunk.scale_stride = 64 * kPanels;
    for (int i = 0; i < tiles.tiles; ++i) {
      run_fixed_chunk<true, kPanels>(a, chunk, x, k0, tiles.begin(i), tiles.begin(i + 1));
      chunk.ahead += chunk.k / kFixedBlock * kFixedLines * 64;
    }
  }
}

static void gemm_mxfp4_dot(const GemmArgs& a) {
  a.panels == 2 ? run_fixed_unit<2>(a) : run_fixed_unit<1>(a);
  scale_outputs<Avx512>(a);
}

}  // namespace
}  // namespace sluice::kernels::cpu
