// SPDX-License-Identifier: Apache-2.0
// Few rows of the MXFP4 dot (mxfp4_dot.h): codes are decoded in registers, weights pass once in their format.
#pragma once

#include "kernels/cpu/micro/mxfp4_fixed.h"

namespace sluice::kernels::cpu {
namespace {

// Up to so many rows codes are decoded in registers: with more, the sums of two panels leave too few.
constexpr int fixed_packed_rows(int planes) { return planes == 2 ? 4 : 3; }

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
  const Stream& stream = a.stream;
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
        q[p] = decode_quads(_mm512_loadu_si512(codes + 64 * (i * kPanels + p)));
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
            const FixedQuads q = decode_quads(_mm512_loadu_si512(a.codes + ((k0 + i) / 8 * kPanels + p) * 64));
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
    one.out += kUnitOut;
  }
}

}  // namespace
}  // namespace sluice::kernels::cpu
