// SPDX-License-Identifier: Apache-2.0
// Attention's softmax between two products of TileOperands::bf16_parts.
#pragma once

#include "kernels/cpu/micro/avx512_vector.h"
#include "kernels/cpu/micro/row_args.h"

namespace sluice::kernels::cpu {
namespace {

// exp(x) for x <= 88, within 2 ulp; 0 below -87.33, where it would be subnormal. NaN for NaN. Cody-Waite reduction by
// ln 2 in two parts, then the polynomial of Cephes' expf.
SLUICE_INLINE __m512 exp_avx512(__m512 x) {
  const __m512 low = _mm512_set1_ps(-87.336544f), round = _mm512_set1_ps(12582912.0f);  // 1.5 * 2^23
  const __mmask16 normal = _mm512_cmp_ps_mask(x, low, _CMP_NLT_UQ);
  const __m512 t = _mm512_max_ps(low, x);  // its second operand if one is NaN
  const __m512 n = _mm512_sub_ps(_mm512_fmadd_ps(t, _mm512_set1_ps(1.44269504088896341f), round), round);
  __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), t);
  r = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440e-4f), r);
  __m512 p = _mm512_fmadd_ps(r, _mm512_set1_ps(1.9875691500e-4f), _mm512_set1_ps(1.3981999507e-3f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(8.3334519073e-3f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(4.1665795894e-2f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.6666665459e-1f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(5.0000001201e-1f));
  p = _mm512_add_ps(_mm512_fmadd_ps(p, _mm512_mul_ps(r, r), r), _mm512_set1_ps(1.0f));
  return _mm512_maskz_scalef_ps(normal, p, n);
}

// Word i of a part: of a[i] the lower half, of b[i] the upper one. Subtracting a part is exact.
SLUICE_INLINE void store_parts(__m512 a, __m512 b, uint32_t* out, int64_t part_stride) {
  const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xffff0000));
#pragma GCC unroll 3
  for (int part = 0; part < 3; ++part) {
    const __m512i x = _mm512_castps_si512(a), y = _mm512_castps_si512(b);
    // (x >> 16) | (y & upper)
    _mm512_storeu_si512(out + part * part_stride, _mm512_ternarylogic_epi32(_mm512_srli_epi32(x, 16), y, upper, 0xf8));
    if (part == 2) break;
    a = _mm512_sub_ps(a, _mm512_castsi512_ps(_mm512_and_si512(x, upper)));
    b = _mm512_sub_ps(b, _mm512_castsi512_ps(_mm512_and_si512(y, upper)));
  }
}

constexpr int kSoftmaxVectors = kSoftmaxPositions / 16;

// Which lanes of a vector are seen.
template <bool kAll>
SLUICE_INLINE __mmask16 seen_lanes(const SoftmaxArgs& a, int64_t query, int vector) {
  if constexpr (kAll) return 0xffff;
  const int64_t n = a.seen + query / a.per_row - 16 * vector;
  return n >= 16 ? 0xffff : n <= 0 ? 0 : static_cast<__mmask16>((1u << n) - 1);
}

// The queries [first, end), at most 16. kAll: they see all positions.
template <bool kAll>
SLUICE_INLINE void softmax_queries(const SoftmaxArgs& a, int64_t first, int64_t end) {
  const __m512 scale = _mm512_set1_ps(a.scale), none = _mm512_set1_ps(-__builtin_inff());
  // Maxima first, so that the factors of all queries are one exponential. A NaN does not count: it shows in the sum.
  for (int64_t i = first; i < end; ++i) {
    const float* scores = a.scores + i * kSoftmaxPositions;
    __m512 largest = none;
#pragma GCC unroll 4
    for (int j = 0; j < kSoftmaxVectors; ++j) {
      const __m512 v = _mm512_mul_ps(_mm512_loadu_ps(scores + 16 * j), scale);
      largest = _mm512_mask_max_ps(largest, seen_lanes<kAll>(a, i, j), v, largest);  // the latter if v is NaN
    }
    a.keep[i] = _mm512_reduce_max_ps(largest);
  }
  const auto lanes = static_cast<__mmask16>((1u << (end - first)) - 1);
  const __m512 before = _mm512_maskz_loadu_ps(lanes, a.maximum + first);
  const __m512 maxima = _mm512_max_ps(_mm512_maskz_loadu_ps(lanes, a.keep + first), before);
  _mm512_mask_storeu_ps(a.maximum + first, lanes, maxima);
  _mm512_mask_storeu_ps(a.keep + first, lanes, exp_avx512(_mm512_sub_ps(before, maxima)));
  for (int64_t i = first; i < end; ++i) {
    const float* scores = a.scores + i * kSoftmaxPositions;
    const __m512 maximum = _mm512_set1_ps(a.maximum[i]);
    __m512 v[kSoftmaxVectors], total = _mm512_setzero_ps();
#pragma GCC unroll 4
    for (int j = 0; j < kSoftmaxVectors; ++j) {
      const __m512 x = _mm512_fmsub_ps(_mm512_loadu_ps(scores + 16 * j), scale, maximum);
      v[j] = exp_avx512(_mm512_mask_blend_ps(seen_lanes<kAll>(a, i, j), none, x));
      total = _mm512_add_ps(total, v[j]);
    }
    uint32_t* out = a.parts + i * (kSoftmaxPositions / 2);
#pragma GCC unroll 2
    for (int j = 0; j < kSoftmaxVectors; j += 2) store_parts(v[j], v[j + 1], out + 8 * j, a.part_stride);
    a.sum[i] = a.sum[i] * a.keep[i] + _mm512_reduce_add_ps(total);
  }
}

// A SoftmaxFn.
static void softmax_parts_avx512(const SoftmaxArgs& a) {
  for (int64_t i = 0; i < a.queries; i += 16) {
    const int64_t end = a.queries - i < 16 ? a.queries : i + 16;
    a.seen >= kSoftmaxPositions ? softmax_queries<true>(a, i, end) : softmax_queries<false>(a, i, end);
  }
}

}  // namespace
}  // namespace sluice::kernels::cpu
