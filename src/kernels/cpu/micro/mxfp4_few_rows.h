// SPDX-License-Identifier: Apache-2.0
// The MXFP4 integer kernel (mxfp4_dot.h) for few input rows: codes are decoded in registers, so the weights are read
// once, as packed.
#pragma once

#include "kernels/cpu/micro/avx512_vector.h"
#include "kernels/cpu/micro/mxfp4_fixed_point.h"

namespace sluice::kernels::cpu {
namespace {

// The most input rows whose weights are decoded in registers. With more rows, the sums of two panels leave too few
// registers.
constexpr int max_rows_in_registers(int planes) { return planes == 2 ? 4 : 3; }

// To call for every 256-byte block of codes that is read: prefetches four lines, interleaved.
SLUICE_INLINE void prefetch_four(const uint8_t* codes, const PrefetchStream& stream) {
  const uint8_t* ahead = interleaved_ahead(codes - (reinterpret_cast<uintptr_t>(codes) & 255));
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) Avx512::prefetch_near(stream_address(ahead + i * kPage, stream));
}

// kM input rows by one N-tile. 32 k of all panels at a time; every plane has its own sums.
template <int kPlanes, int kM, int kPanels>
static void run_rows_in_registers(const GemmArgs& a, const uint8_t* const* x) {
  const FixedPointRow at(a.w.k);
  const PrefetchStream& stream = a.task.stream;
  __m512 acc[kM][kPanels];
  for (int m = 0; m < kM; ++m)
#pragma GCC unroll 2
    for (int p = 0; p < kPanels; ++p) acc[m][p] = _mm512_setzero_ps();
  PlanePointers rows[kM];
#pragma GCC unroll 4
  for (int m = 0; m < kM; ++m) rows[m] = planes_at(at, x[m], 0);
  const uint8_t* codes = a.w.codes;
  const uint8_t* scales = a.w.scales;
  for (int64_t b = 0; b < a.w.k / kFixedBlockK; ++b) {
    Avx512::prefetch_near(scales + kScalesPrefetchBytes);
    __m512i sum[kM][kPlanes][kPanels], weight_bytes[kPanels];
#pragma GCC unroll 2
    for (int p = 0; p < kPanels; ++p) {
      weight_bytes[p] = _mm512_setzero_si512();
#pragma GCC unroll 4
      for (int m = 0; m < kM; ++m)
#pragma GCC unroll 3
        for (int plane = 0; plane < kPlanes; ++plane) sum[m][plane][p] = _mm512_setzero_si512();
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      WeightQuads<Avx512> q[kPanels];
#pragma GCC unroll 2
      for (int p = 0; p < kPanels; ++p) {
        q[p] = decode_quads<Avx512>(_mm512_loadu_si512(codes + 64 * (i * kPanels + p)));
        weight_bytes[p] = _mm512_add_epi8(weight_bytes[p], _mm512_add_epi8(q[p].w[0], q[p].w[1]));
      }
#pragma GCC unroll 2
      for (int j = 0; j < 2; ++j)
#pragma GCC unroll 4
        for (int m = 0; m < kM; ++m)
#pragma GCC unroll 3
          for (int plane = 0; plane < kPlanes; ++plane) {
            const __m512i v = Avx512::broadcast_quad(
                (plane < 2 ? rows[m].upper + 64 * b + 32 * plane : rows[m].low + 32 * b) + 8 * i + 4 * j);
#pragma GCC unroll 2
            for (int p = 0; p < kPanels; ++p) sum[m][plane][p] = dot_bytes(sum[m][plane][p], v, q[p].w[j]);
          }
      if (i % 2 == 1 && i / 2 < kPanels) prefetch_four(codes + 256 * (i / 2), stream);
    }
#pragma GCC unroll 2
    for (int p = 0; p < kPanels; ++p) {
      const __m512i correction = bias_correction<Avx512>(weight_bytes[p]);
      const __m512 ws = Avx512::scale_e8m0(scales + 16 * p);
#pragma GCC unroll 4
      for (int m = 0; m < kM; ++m) {
        __m512i s = _mm512_add_epi32(sum[m][0][p], correction);
#pragma GCC unroll 2
        for (int plane = 1; plane < kPlanes; ++plane) s = _mm512_add_epi32(_mm512_slli_epi32(s, 8), sum[m][plane][p]);
        const __m512 xs = _mm512_set1_ps(rows[m].scales[2 * b + kPlanes - 2]);
        acc[m][p] = _mm512_fmadd_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(s), xs), ws, acc[m][p]);
      }
    }
    codes += 256 * kPanels;
    scales += 16 * kPanels;
    const int64_t k = (b + 1) * kFixedBlockK;
    if (k % kFixedChunkK != 0 && k != a.w.k) continue;
    const int64_t k0 = (k - 1) / kFixedChunkK * kFixedChunkK;
#pragma GCC unroll 4
    for (int m = 0; m < kM; ++m) {
      const OutlierRange outliers(at, x[m], k0);
      if (outliers.begin == outliers.end) continue;
      float* out = a.out + m * kNTile;
#pragma GCC unroll 2
      for (int p = 0; p < kPanels; ++p) _mm512_storeu_ps(out + 16 * p, acc[m][p]);
      add_outliers<Avx512, kPanels>(
          outliers, out,
          [&](uint32_t i, int p) __attribute__((always_inline)) {
            const auto q = decode_quads<Avx512>(_mm512_loadu_si512(a.w.codes + ((k0 + i) / 8 * kPanels + p) * 64));
            return Avx512::byte_of_quads(quad_of(i % 8) == 0 ? q.w[0] : q.w[1], byte_of(i % 8));
          },
          [&](uint32_t block, int p) __attribute__((always_inline)) {
            return Avx512::scale_e8m0(a.w.scales + ((k0 / kFixedBlockK + block) * kPanels + p) * 16);
          });
#pragma GCC unroll 2
      for (int p = 0; p < kPanels; ++p) acc[m][p] = _mm512_loadu_ps(out + 16 * p);
    }
  }
#pragma GCC unroll 4
  for (int m = 0; m < kM; ++m)
#pragma GCC unroll 2
    for (int p = 0; p < kPanels; ++p) _mm512_storeu_ps(a.out + m * kNTile + 16 * p, acc[m][p]);
}

// All N-tiles of a call. x: [a.x.m] packed rows.
template <int kPlanes, int kPanels>
static void run_few_rows(const GemmArgs& a, const uint8_t* const* x) {
  GemmArgs n_tile = a;
  for (int i = 0; i < a.w.n_tiles; ++i) {
    if (a.x.m == 1) run_rows_in_registers<kPlanes, 1, kPanels>(n_tile, x);
    if (a.x.m == 2) run_rows_in_registers<kPlanes, 2, kPanels>(n_tile, x);
    if (a.x.m == 3) run_rows_in_registers<kPlanes, 3, kPanels>(n_tile, x);
    if constexpr (max_rows_in_registers(kPlanes) == 4)
      if (a.x.m == 4) run_rows_in_registers<kPlanes, 4, kPanels>(n_tile, x);
    n_tile.w.codes += a.w.codes_stride;
    n_tile.w.scales += a.w.scales_stride;
    n_tile.out += kNTileOutStride;
  }
}

}  // namespace
}  // namespace sluice::kernels::cpu
