// SPDX-License-Identifier: Apache-2.0
// Many rows of the MXFP4 dot (mxfp4_dot.h): a chunk of weights is decoded to L1 once for all rows.
#pragma once

#include "kernels/cpu/micro/mxfp4_fixed.h"

namespace sluice::kernels::cpu {
namespace {

inline constexpr int kFixedTileRows = 6;  // by 4 panels: 10 loads for 24 dots

// Decoded weights of a chunk. A load waits for every earlier store of the same low 12 address bits that has not left
// the core, and about 56 of them are on their way: with front to back writing that is most of a page, and decoding took
// a third longer. So a unit's decoded weights advance through a page as fast as its codes, 512 bytes for 32 k, and
// begin where stores stay behind loads: bytes [k / 4][kUnitPanels][64] in the same part of two pages, bias corrections
// [kUnitPanels][16] and scales [kUnitPanels][16] in that of a third.
template <int kPanels>
struct FixedWeights {
  static constexpr int kUnitPanels = kPanels < 2 ? kPanels : 2, kUnits = kPanels / kUnitPanels;
  static constexpr int64_t kBlockBytes = 256 * kUnitPanels;  // of a page, and of codes
  static constexpr int64_t kUnitBytes = 3 * kPage, kBehind = 768;
  uint8_t* units[kUnits];
  // `codes` of the first chunk: of two panels, the following ones are whole pages away.
  FixedWeights(uint8_t* scratch, const uint8_t* codes, int64_t unit_codes) {
    for (int u = 0; u < kUnits; ++u) {
      const auto at = reinterpret_cast<uintptr_t>(codes + u * unit_codes) - kBehind;
      units[u] = scratch + u * (kUnitBytes + kPage) + ((at - reinterpret_cast<uintptr_t>(scratch)) & (kPage - 64));
    }
  }
  uint8_t* block(int p, int64_t b) const { return units[p / 2] + b * kBlockBytes + p % 2 * 64; }
  static constexpr int64_t scratch_bytes() { return kUnits * (kUnitBytes + kPage); }
};
// From block(): the bytes of four k, what the third page holds.
constexpr int64_t quad_at(int panels, int q) { return q / 4 * kPage + q % 4 * 64 * (panels < 2 ? panels : 2); }
constexpr int64_t kCorrectionsAt = 2 * kPage;
constexpr int64_t scales_at(int panels) { return 2 * kPage + 64 * (panels < 2 ? panels : 2); }

// What the tiles of a call bring to L2: the weights of the next one, in the order of page_ahead().
struct FixedAhead {
  const uint8_t *codes, *scales;
  int64_t at, end;  // bytes of codes
  int fours;        // four lines each, that a tile brings in the time of a block
};
SLUICE_INLINE bool has_more(const FixedAhead& a, int i) { return i < a.fours && a.at < a.end; }
// The first of the next four lines, a page between them.
SLUICE_INLINE const uint8_t* next_four(FixedAhead& a) {
  const int64_t line = a.at & (4 * kPage - 1);
  const uint8_t* p = a.codes + a.at - line + (line >> 2);
  if (a.at % 1024 == 0) Avx512::prefetch_far(a.scales + a.at / 16);
  a.at += 256;
  return p;
}

template <int kPlanes, int kRows, int kPanels>
static void run_fixed_tile(const FixedWeights<kPanels>& weights, int64_t k, const FixedX* x, float* out, bool first,
                           FixedAhead& ahead) {
  constexpr bool kInRegisters = kRows * kPanels <= 12;
  __m512 acc[kRows][kPanels];
#pragma GCC unroll 8
  for (int m = 0; m < kRows; ++m)
#pragma GCC unroll 4
    for (int p = 0; p < kPanels; ++p) {
      float* to = out + m * kTileCols + out_of(p);
      if (kInRegisters) acc[m][p] = first ? _mm512_setzero_ps() : _mm512_loadu_ps(to);
      if (!kInRegisters && first) _mm512_storeu_ps(to, _mm512_setzero_ps());
    }
  const FixedWeights<kPanels> from = weights;  // what is stored may not change it
  FixedX row[kRows];
#pragma GCC unroll 8
  for (int m = 0; m < kRows; ++m) row[m] = x[m];
  for (int64_t b = 0; b < k / kFixedBlock; ++b) {
    __m512i sum[kRows][kPanels];
#pragma GCC unroll 4
    for (int p = 0; p < kPanels; ++p) {
      const __m512i start = _mm512_load_si512(from.block(p, b) + kCorrectionsAt);
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
        const uint8_t* four = has_more(ahead, 2 * plane + half) ? next_four(ahead) : nullptr;
#pragma GCC unroll 4
        for (int i = 0; i < kFixedQuads / 2; ++i) {
          const int q = kFixedQuads / 2 * half + i;
          __m512i w[kPanels];
#pragma GCC unroll 4
          for (int p = 0; p < kPanels; ++p) w[p] = keep(_mm512_load_si512(from.block(p, b) + quad_at(kPanels, q)));
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
    __m512i ws[kPanels];
#pragma GCC unroll 4
    for (int p = 0; p < kPanels; ++p) ws[p] = keep(_mm512_load_si512(from.block(p, b) + scales_at(kPanels)));
#pragma GCC unroll 8
    for (int m = 0; m < kRows; ++m) {
      const __m512 xs = _mm512_set1_ps(row[m].scales[2 * b + kPlanes - 2]);
#pragma GCC unroll 4
      for (int p = 0; p < kPanels; ++p) {
        const __m512 part = _mm512_mul_ps(_mm512_cvtepi32_ps(sum[m][p]), xs);
        if constexpr (kInRegisters) {
          acc[m][p] = _mm512_fmadd_ps(part, _mm512_castsi512_ps(ws[p]), acc[m][p]);
        } else {
          float* to = out + m * kTileCols + out_of(p);
          _mm512_storeu_ps(to, _mm512_fmadd_ps(part, _mm512_castsi512_ps(ws[p]), _mm512_loadu_ps(to)));
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

// k codes at k0 of kPanels panels: of one unit, or of two that follow each other.
template <int kPanels>
static void decode_fixed_chunk(const GemmArgs& a, int64_t k0, int64_t k, const FixedWeights<kPanels>& out) {
  constexpr int kUnitPanels = FixedWeights<kPanels>::kUnitPanels;
#pragma GCC unroll 2
  for (int u = 0; u < FixedWeights<kPanels>::kUnits; ++u) {
    const uint8_t* codes = a.codes + u * a.unit_codes + k0 / 8 * 64 * kUnitPanels;
    const uint8_t* scales = a.scales + u * a.unit_scales + k0 / kFixedBlock * 16 * kUnitPanels;
    uint8_t* const unit = out.block(2 * u, 0);
    for (int64_t b = 0; b < k / kFixedBlock; ++b)
#pragma GCC unroll 2
      for (int i = 0; i < kUnitPanels; ++i) {
        uint8_t* to = unit + b * FixedWeights<kPanels>::kBlockBytes + 64 * i;
        __m512i all = _mm512_setzero_si512();
#pragma GCC unroll 4
        for (int j = 0; j < 4; ++j) {
          const FixedQuads q = decode_quads(keep(_mm512_loadu_si512(codes + 64 * ((4 * b + j) * kUnitPanels + i))));
          all = _mm512_add_epi8(all, _mm512_add_epi8(q.w[0], q.w[1]));  // at most 96
          _mm512_store_si512(to + quad_at(kPanels, 2 * j), q.w[0]);
          _mm512_store_si512(to + quad_at(kPanels, 2 * j + 1), q.w[1]);
        }
        _mm512_store_si512(to + kCorrectionsAt,
                           bias_correction(dot_bytes(_mm512_setzero_si512(), _mm512_set1_epi8(1), all)));
        _mm512_store_ps(to + scales_at(kPanels), Avx512::scale_e8m0(scales + 16 * (b * kUnitPanels + i)));
      }
  }
}

template <int kPanels>
static void run_fixed_many(const GemmArgs& a, const uint8_t* const* x) {
  static_assert(FixedWeights<kPanels>::scratch_bytes() <= kScratchBytes);
  const FixedRow at(a.k);
  const FixedWeights<kPanels> weights(a.scratch, a.codes, a.unit_codes);
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
              const int quad = static_cast<int>(j % kFixedBlock / 8 * 2 + quad_of(j % 8));
              const __m512i w = _mm512_load_si512(weights.block(p, j / kFixedBlock) + quad_at(kPanels, quad));
              return dot_bytes(_mm512_setzero_si512(), select_byte(j % 8), w);
            },
            [&](uint32_t block, int p) __attribute__((always_inline)) {
              return _mm512_load_ps(weights.block(p, block) + scales_at(kPanels));
            });
      }
    }
  }
}

}  // namespace
}  // namespace sluice::kernels::cpu
