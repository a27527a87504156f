// SPDX-License-Identifier: Apache-2.0
// MXFP4 weights by bfloat16 inputs as integers: inputs are two or three planes of bytes (micro.h: FixedRow), weights
// signed bytes 2w, and vpdpbusd sums four products a lane and instruction. One int32 takes the planes in turn, shifted
// by 8 bits between them, so the sum of each 32 products is exact, then rounded once. What the planes do not hold is
// added one by one. Needs AVX-512 VNNI.
//
// Every output is one chain of fused multiply-adds: the blocks of a chunk, then its rest, then the next chunk, whatever
// the number of rows (micro/tile.h says why). A third plane of zeros multiplies a sum by 256 and its scale by 1/256, so
// rows of two and three planes may share a tile.
#pragma once

#include "kernels/cpu/micro/tile.h"

namespace sluice::kernels::cpu {
namespace {

// Up to so many rows codes are decoded in registers: with more, the sums of two panels leave too few.
constexpr int fixed_packed_rows(int planes) { return planes == 2 ? 4 : 3; }
inline constexpr int kFixedTileRows = 6;  // by 4 panels: 10 loads for 24 dots
inline constexpr int kFixedQuads = kFixedBlock / 4;

// 8 k of a panel as bytes 2w: (k0 k4 k1 k5), (k2 k6 k3 k7) of each row.
struct FixedQuads {
  __m512i w[2];
};
SLUICE_INLINE FixedQuads decode_quads(const uint8_t* codes) {
  // 2 * {0, .5, 1, 1.5, 2, 3, 4, 6, -0, ...}
  const __m512i table = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12));
  const __m512i low = _mm512_set1_epi8(0x0f), raw = _mm512_loadu_si512(codes);
  return {{_mm512_shuffle_epi8(table, _mm512_and_si512(raw, low)),
           _mm512_shuffle_epi8(table, _mm512_and_si512(_mm512_srli_epi16(raw, 4), low))}};
}
SLUICE_INLINE __m512i add_quads(__m512i sum, const FixedQuads& q) {
  return dot_bytes(dot_bytes(sum, _mm512_set1_epi8(1), q.w[0]), _mm512_set1_epi8(1), q.w[1]);
}
// What the bias of the inputs' upper plane adds to a sum over that plane, negated.
SLUICE_INLINE __m512i bias_correction(__m512i sum) {
  return _mm512_sub_epi32(_mm512_setzero_si512(), _mm512_slli_epi32(sum, 7));
}

// One k, 0 to 7, of a panel: where its byte lies and the dot that takes it out.
SLUICE_INLINE __m512i select_byte(uint32_t k) {
  // Byte 0: k 0 and 2, byte 1: 4 and 6, byte 2: 1 and 3, byte 3: 5 and 7.
  return _mm512_set1_epi32(1 << (16 * (k & 1) + 2 * (k & 4)));
}
SLUICE_INLINE uint32_t quad_of(uint32_t k) { return k >> 1 & 1; }

// GCC would load a value again for every use of it.
SLUICE_INLINE __m512i keep(__m512i v) {
  __asm__("" : "+v"(v));
  return v;
}

SLUICE_INLINE __m512i broadcast_i32(const uint8_t* p) {
  int32_t v;
  __builtin_memcpy(&v, p, 4);
  return _mm512_set1_epi32(v);
}

// Input rows of a tile at the first k of a chunk.
struct FixedX {
  const uint8_t *upper, *low;
  const float* scales;
};

// Decoded weights of a chunk, kPanels panels: bytes [k / 4][kPanels][64]; for each 32 k bias corrections [kPanels][16]
// and scales [kPanels][16].
template <int kPanels>
struct FixedWeights {
  static constexpr int64_t kBytes = kFixedChunk / 4 * 64 * kPanels, kBlocks = kFixedChunk / kFixedBlock;
  uint8_t* bytes;
  uint8_t* corrections;
  uint8_t* scales;
  explicit FixedWeights(uint8_t* scratch)
      : bytes(scratch), corrections(scratch + kBytes), scales(corrections + kBlocks * 64 * kPanels) {}
  static constexpr int64_t scratch_bytes() { return kBytes + 2 * kBlocks * 64 * kPanels; }
};

// Where the outputs of panel p begin: two panels a unit.
SLUICE_INLINE int out_of(int p) { return p / 2 * kMaxRows * kTileCols + p % 2 * 16; }

// What the tiles of a call bring to L2: the weights of the next one, in the order of page_ahead().
struct FixedAhead {
  const uint8_t *codes, *scales;
  int64_t at, end;  // bytes of codes
  int fours;        // four lines each, that a tile brings in the time of a block
  SLUICE_INLINE bool more(const FixedAhead& a, int i) { return i < a.fours && a.at < a.end; }
  // The first of the next four lines, a page between them.
  SLUICE_INLINE const uint8_t* next_four(FixedAhead& a) {
    const int64_t line = a.at & (4 * kPage - 1);
    const uint8_t* p = a.codes + a.at - line + (line >> 2);
    if (a.at % 1024 == 0) Avx512::prefetch_far(a.scales + a.at / 16);
    a.at += 256;
    return p;
  }
};

template <int kPlanes, int kRows, int kPanels>
static void run_fixed_tile(const FixedWeights<kPanels>& weights, int64_t k, const FixedX* x, float* out, bool first,
                           FixedAhead& ahead) {
  constexpr bool kInRegisters = kRows * kPanels <= 4;
  __m512 acc[kRows][kPanels];
#pragma GCC unroll 8
  for (int m = 0; m < kRows; ++m)
#pragma GCC unroll 4
    for (int p = 0; p < kPanels; ++p) {
      float* to = out + m * kTileCols + out_of(p);
      if (kInRegisters) acc[m][p] = first ? _mm512_setzero_ps() : _mm512_loadu_ps(to);
      if (!kInRegisters && first) _mm512_storeu_ps(to, _mm512_setzero_ps());
    }
  const uint8_t* bytes = weights.bytes;
  const uint8_t *scales = weights.scales, *corrections = weights.corrections;
  FixedX row[kRows];
#pragma GCC unroll 8
  for (int m = 0; m < kRows; ++m) row[m] = x[m];
  for (int64_t b = 0; b < k / kFixedBlock; ++b) {
    __m512i sum[kRows][kPanels];
#pragma GCC unroll 4
    for (int p = 0; p < kPanels; ++p) {
      const __m512i start = _mm512_load_si512(corrections + 64 * (b * kPanels + p));
#pragma GCC unroll 8
      for (int m = 0; m < kRows; ++m) sum[m][p] = start;
    }
#pragma GCC unroll 3
    for (int plane = 0; plane < kPlanes; ++plane) {
      if (plane > 0) {
#pragma GCC unroll 8
        for (int m = 0; m < kRows; ++m)
#pragma GCC unroll 4
          for (int p = 0; p < kPanels; ++p) sum[m][p] = _mm512_slli_epi32(sum[m][p], 8);
      }
#pragma GCC unroll 1
      for (int half = 0; half < 2; ++half) {
        const uint8_t* four = FixedAhead::more(ahead, 2 * plane + half) ? FixedAhead::next_four(ahead) : nullptr;
#pragma GCC unroll 4
        for (int i = 0; i < kFixedQuads / 2; ++i) {
          const int q = kFixedQuads / 2 * half + i;
          __m512i w[kPanels];
#pragma GCC unroll 4
          for (int p = 0; p < kPanels; ++p) w[p] = keep(_mm512_load_si512(bytes + 64 * (q * kPanels + p)));
          if (four != nullptr) Avx512::prefetch_far(four + i * kPage);
#pragma GCC unroll 8
          for (int m = 0; m < kRows; ++m) {
            const __m512i v =
                broadcast_i32((plane < 2 ? row[m].upper + 64 * b + 32 * plane : row[m].low + 32 * b) + 4 * q);
#pragma GCC unroll 4
            for (int p = 0; p < kPanels; ++p) sum[m][p] = dot_bytes(sum[m][p], v, w[p]);
          }
        }
      }
    }
    bytes += 64 * kFixedQuads * kPanels;
#pragma GCC unroll 8
    for (int m = 0; m < kRows; ++m) {
      const __m512 xs = _mm512_set1_ps(row[m].scales[2 * b + kPlanes - 2]);
#pragma GCC unroll 4
      for (int p = 0; p < kPanels; ++p) {
        const __m512 ws = _mm512_load_ps(scales + 64 * (b * kPanels + p));
        const __m512 part = _mm512_mul_ps(_mm512_cvtepi32_ps(sum[m][p]), xs);
        if constexpr (kInRegisters) {
          acc[m][p] = _mm512_fmadd_ps(part, ws, acc[m][p]);
        } else {
          float* to = out + m * kTileCols + out_of(p);
          _mm512_storeu_ps(to, _mm512_fmadd_ps(part, ws, _mm512_loadu_ps(to)));
        }
      }
    }
  }
  if constexpr (kInRegisters) {
#pragma GCC unroll 8
    for (int m = 0; m < kRows; ++m)
#pragma GCC unroll 4
      for (int p = 0; p < kPanels; ++p) _mm512_storeu_ps(out + m * kTileCols + out_of(p), acc[m][p]);
  }
}

template <int kPlanes, int kPanels>
static void run_fixed_rows(const FixedWeights<kPanels>& weights, int64_t k, const FixedX* x, int rows, float* out,
                           bool first, FixedAhead& ahead) {
  using Run = void (*)(const FixedWeights<kPanels>&, int64_t, const FixedX*, float*, bool, FixedAhead&);
  static constexpr Run kRun[kFixedTileRows] = {
      run_fixed_tile<kPlanes, 1, kPanels>, run_fixed_tile<kPlanes, 2, kPanels>, run_fixed_tile<kPlanes, 3, kPanels>,
      run_fixed_tile<kPlanes, 4, kPanels>, run_fixed_tile<kPlanes, 5, kPanels>, run_fixed_tile<kPlanes, 6, kPanels>};
  kRun[rows - 1](weights, k, x, out, first, ahead);
}

// The rest of one row in a chunk. Weights(k, panel) gives them as integers, Scales(block, panel) theirs.
template <int kPanels, class Weights, class Scales>
SLUICE_INLINE void add_fixed_rest(const FixedRest* rest, const FixedRest* end, float* out, Weights weights,
                                  Scales scales) {
  if (rest == end) return;
  __m512 acc[kPanels];
#pragma GCC unroll 4
  for (int p = 0; p < kPanels; ++p) acc[p] = _mm512_loadu_ps(out + out_of(p));
  for (; rest < end; ++rest) {
    const __m512 value = _mm512_set1_ps(rest->value);
#pragma GCC unroll 4
    for (int p = 0; p < kPanels; ++p) {
      const __m512 part = _mm512_mul_ps(_mm512_cvtepi32_ps(weights(rest->k, p)), value);
      acc[p] = _mm512_fmadd_ps(part, scales(rest->block, p), acc[p]);
    }
  }
#pragma GCC unroll 4
  for (int p = 0; p < kPanels; ++p) _mm512_storeu_ps(out + out_of(p), acc[p]);
}

// A row's rest in the chunk at k0.
struct RestRange {
  const FixedRest *begin, *end;
  RestRange(const FixedRow& at, const uint8_t* x, int64_t k0) {
    const int32_t* starts = reinterpret_cast<const int32_t*>(x + at.starts) + 1 + k0 / kFixedChunk;
    const FixedRest* rest = reinterpret_cast<const FixedRest*>(x + at.rest);
    begin = rest + starts[0];
    end = rest + starts[1];
  }
};
SLUICE_INLINE FixedX fixed_x(const FixedRow& at, const uint8_t* x, int64_t k0) {
  return {x + 2 * k0, x + at.low + k0, reinterpret_cast<const float*>(x + at.scales) + k0 / kFixedBlock * 2};
}
SLUICE_INLINE int planes_of(const FixedRow& at, const uint8_t* x) {
  int32_t planes;
  __builtin_memcpy(&planes, x + at.starts, 4);
  return planes;
}

// Four lines of the stream from `codes` on have been read (those of its 256 bytes).
SLUICE_INLINE void prefetch_four(const uint8_t* codes, const Stream& stream) {
  const uint8_t* ahead = page_ahead(codes - (reinterpret_cast<uintptr_t>(codes) & 255));
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) Avx512::prefetch_near(in_stream(ahead + i * kPage, stream));
}

// Few rows: 32 k of all panels at a time, sums of the planes side by side.
template <int kPlanes, int kRows, int kPanels>
static void run_fixed_packed(const GemmArgs& a, const uint8_t* const* x) {
  const FixedRow at(a.k);
  const Stream stream{a.stream_end, a.stream_jump};
  __m512 acc[kRows][kPanels];
  for (int m = 0; m < kRows; ++m)
#pragma GCC unroll 2
    for (int p = 0; p < kPanels; ++p) acc[m][p] = _mm512_setzero_ps();
  FixedX rows[kRows];
#pragma GCC unroll 4
  for (int m = 0; m < kRows; ++m) rows[m] = fixed_x(at, x[m], 0);
  const uint8_t* codes = a.codes;
  const uint8_t* scales = a.scales;
  for (int64_t b = 0; b < a.k / kFixedBlock; ++b) {
    Avx512::prefetch_near(scales + kScalesAhead);
    __m512i sum[kRows][kPlanes][kPanels], all[kPanels];
#pragma GCC unroll 2
    for (int p = 0; p < kPanels; ++p) {
      all[p] = _mm512_setzero_si512();
#pragma GCC unroll 4
      for (int m = 0; m < kRows; ++m)
#pragma GCC unroll 3
        for (int plane = 0; plane < kPlanes; ++plane) sum[m][plane][p] = _mm512_setzero_si512();
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      FixedQuads q[kPanels];
#pragma GCC unroll 2
      for (int p = 0; p < kPanels; ++p) {
        q[p] = decode_quads(codes + 64 * (i * kPanels + p));
        all[p] = add_quads(all[p], q[p]);
      }
#pragma GCC unroll 2
      for (int j = 0; j < 2; ++j)
#pragma GCC unroll 4
        for (int m = 0; m < kRows; ++m)
#pragma GCC unroll 3
          for (int plane = 0; plane < kPlanes; ++plane) {
            const __m512i v =
                broadcast_i32((plane < 2 ? rows[m].upper + 64 * b + 32 * plane : rows[m].low + 32 * b) + 8 * i + 4 * j);
#pragma GCC unroll 2
            for (int p = 0; p < kPanels; ++p) sum[m][plane][p] = dot_bytes(sum[m][plane][p], v, q[p].w[j]);
          }
      if (i % 2 == 1 && i / 2 < kPanels) prefetch_four(codes + 256 * (i / 2), stream);
    }
#pragma GCC unroll 2
    for (int p = 0; p < kPanels; ++p) {
      const __m512i correction = bias_correction(all[p]);
      const __m512 ws = Avx512::scale_e8m0(scales + 16 * p);
#pragma GCC unroll 4
      for (int m = 0; m < kRows; ++m) {
        __m512i s = _mm512_add_epi32(sum[m][0][p], correction);
#pragma GCC unroll 2
        for (int plane = 1; plane < kPlanes; ++plane) s = _mm512_add_epi32(_mm512_slli_epi32(s, 8), sum[m][plane][p]);
        const __m512 xs = _mm512_set1_ps(rows[m].scales[2 * b + kPlanes - 2]);
        acc[m][p] = _mm512_fmadd_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(s), xs), ws, acc[m][p]);
      }
    }
    codes += 256 * kPanels;
    scales += 16 * kPanels;
    const int64_t k = (b + 1) * kFixedBlock;
    if (k % kFixedChunk != 0 && k != a.k) continue;
    const int64_t k0 = (k - 1) / kFixedChunk * kFixedChunk;
#pragma GCC unroll 4
    for (int m = 0; m < kRows; ++m) {
      const RestRange r(at, x[m], k0);
      if (r.begin == r.end) continue;
      float* out = a.out + m * kTileCols;
#pragma GCC unroll 2
      for (int p = 0; p < kPanels; ++p) _mm512_storeu_ps(out + 16 * p, acc[m][p]);
      add_fixed_rest<kPanels>(
          r.begin, r.end, out,
          [&](uint32_t i, int p) __attribute__((always_inline)) {
            const FixedQuads q = decode_quads(a.codes + ((k0 + i) / 8 * kPanels + p) * 64);
            return dot_bytes(_mm512_setzero_si512(), select_byte(i % 8), quad_of(i % 8) == 0 ? q.w[0] : q.w[1]);
          },
          [&](uint32_t block, int p) __attribute__((always_inline)) {
            return Avx512::scale_e8m0(a.scales + ((k0 / kFixedBlock + block) * kPanels + p) * 16);
          });
#pragma GCC unroll 2
      for (int p = 0; p < kPanels; ++p) acc[m][p] = _mm512_loadu_ps(out + 16 * p);
    }
  }
#pragma GCC unroll 4
  for (int m = 0; m < kRows; ++m)
#pragma GCC unroll 2
    for (int p = 0; p < kPanels; ++p) _mm512_storeu_ps(a.out + m * kTileCols + 16 * p, acc[m][p]);
}

template <int kPlanes, int kPanels>
static void run_fixed_few(const GemmArgs& a, const uint8_t* const* x) {
  GemmArgs one = a;
  for (int u = 0; u < a.units; ++u) {
    if (a.m == 1) run_fixed_packed<kPlanes, 1, kPanels>(one, x);
    if (a.m == 2) run_fixed_packed<kPlanes, 2, kPanels>(one, x);
    if (a.m == 3) run_fixed_packed<kPlanes, 3, kPanels>(one, x);
    if constexpr (fixed_packed_rows(kPlanes) == 4)
      if (a.m == 4) run_fixed_packed<kPlanes, 4, kPanels>(one, x);
    one.codes += a.unit_codes;
    one.scales += a.unit_scales;
    one.out += kMaxRows * kTileCols;
  }
}

// k codes at k0 of kPanels panels: of one unit, or of two that follow each other.
template <int kPanels>
static void decode_fixed_chunk(const GemmArgs& a, int64_t k0, int64_t k, const FixedWeights<kPanels>& out) {
  constexpr int kUnitPanels = kPanels < 2 ? kPanels : 2;
  constexpr int kUnits = kPanels / kUnitPanels;
#pragma GCC unroll 2
  for (int u = 0; u < kUnits; ++u) {
    const uint8_t* codes = a.codes + u * a.unit_codes + k0 / 8 * 64 * kUnitPanels;
    const uint8_t* scales = a.scales + u * a.unit_scales + k0 / kFixedBlock * 16 * kUnitPanels;
    for (int64_t b = 0; b < k / kFixedBlock; ++b)
#pragma GCC unroll 2
      for (int i = 0; i < kUnitPanels; ++i) {
        const int p = u * kUnitPanels + i;
        uint8_t* bytes = out.bytes + 64 * (b * kFixedQuads * kPanels + p);
        __m512i all = _mm512_setzero_si512();
#pragma GCC unroll 4
        for (int j = 0; j < 4; ++j) {
          const FixedQuads q = decode_quads(codes + 64 * ((4 * b + j) * kUnitPanels + i));
          all = add_quads(all, q);
          _mm512_store_si512(bytes + 64 * kPanels * (2 * j), q.w[0]);
          _mm512_store_si512(bytes + 64 * kPanels * (2 * j + 1), q.w[1]);
        }
        _mm512_store_si512(out.corrections + 64 * (b * kPanels + p), bias_correction(all));
        _mm512_store_ps(out.scales + 64 * (b * kPanels + p), Avx512::scale_e8m0(scales + 16 * (b * kUnitPanels + i)));
      }
  }
}

template <int kPanels>
static void run_fixed_many(const GemmArgs& a, const uint8_t* const* x) {
  static_assert(FixedWeights<kPanels>::scratch_bytes() <= kScratchBytes);
  const FixedRow at(a.k);
  const FixedWeights<kPanels> weights(a.scratch);
  const int tiles = (a.m + kFixedTileRows - 1) / kFixedTileRows;
  const int64_t bytes = a.k / 8 * 64 * kPanels;
  FixedAhead ahead{a.next_codes, a.next_scales, 0, bytes, (kPanels + tiles - 1) / tiles};
  for (int64_t k0 = 0; k0 < a.k; k0 += kFixedChunk) {
    const int64_t k = a.k - k0 < kFixedChunk ? a.k - k0 : kFixedChunk;
    decode_fixed_chunk<kPanels>(a, k0, k, weights);
    for (int i = 0; i < tiles; ++i) {
      const int begin = static_cast<int>(int64_t{a.m} * i / tiles),
                end = static_cast<int>(int64_t{a.m} * (i + 1) / tiles);
      FixedX rows[kFixedTileRows];
      int planes = 2;
      for (int r = begin; r < end; ++r) {
        rows[r - begin] = fixed_x(at, x[r], k0);
        planes = planes_of(at, x[r]) > planes ? 3 : planes;
      }
      float* out = a.out + static_cast<int64_t>(begin) * kTileCols;
      if (planes == 2)
        run_fixed_rows<2, kPanels>(weights, k, rows, end - begin, out, k0 == 0, ahead);
      else
        run_fixed_rows<3, kPanels>(weights, k, rows, end - begin, out, k0 == 0, ahead);
      for (int r = begin; r < end; ++r) {
        const RestRange rest(at, x[r], k0);
        add_fixed_rest<kPanels>(
            rest.begin, rest.end, a.out + static_cast<int64_t>(r) * kTileCols,
            [&](uint32_t j, int p) __attribute__((always_inline)) {
              const __m512i w = _mm512_load_si512(weights.bytes + ((j / 8 * 2 + quad_of(j % 8)) * kPanels + p) * 64);
              return dot_bytes(_mm512_setzero_si512(), select_byte(j % 8), w);
            },
            [&](uint32_t block, int p)
                __attribute__((always_inline)) { return _mm512_load_ps(weights.scales + 64 * (block * kPanels + p)); });
      }
    }
  }
}

static void gemm_mxfp4_dot(const GemmArgs& a) {
  const uint8_t* x[kMaxRows];
  int planes = 2;
  for (int i = 0; i < a.m; ++i) {
    x[i] = a.x + (a.x_rows != nullptr ? a.x_rows[i] : i) * a.x_stride;
    planes = planes_of(FixedRow(a.k), x[i]) > planes ? 3 : planes;
  }
  if (a.m <= fixed_packed_rows(planes))
    if (planes == 2)
      a.panels == 2 ? run_fixed_few<2, 2>(a, x) : run_fixed_few<2, 1>(a, x);
    else
      a.panels == 2 ? run_fixed_few<3, 2>(a, x) : run_fixed_few<3, 1>(a, x);
  else if (a.units == 2)
    run_fixed_many<4>(a, x);
  else
    a.panels == 2 ? run_fixed_many<2>(a, x) : run_fixed_many<1>(a, x);
  GemmArgs one = a;
  for (int u = 0; u < a.units; ++u) {
    scale_outputs<Avx512>(one);
    one.row_scale += 16 * a.panels;
    one.out += kMaxRows * kTileCols;
  }
}

}  // namespace
}  // namespace sluice::kernels::cpu
