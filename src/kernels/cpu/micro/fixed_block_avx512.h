// SPDX-License-Identifier: Apache-2.0
// A block of 32 values as integers (fixed_point_row.h), with AVX-512.
#pragma once

#include "kernels/cpu/micro/fixed_point_row.h"

namespace sluice::kernels::cpu {
namespace {

struct FixedBlockAvx512 {
  __m512i code[2];
  uint32_t lost, in_low;
  float scale;

  SLUICE_INLINE __m512i finite_magnitude(__m512 v) {
    const __m512i magnitude = _mm512_castps_si512(_mm512_abs_ps(v));
    return _mm512_maskz_mov_epi32(_mm512_cmplt_epi32_mask(magnitude, _mm512_set1_epi32(0x7f800000)), magnitude);
  }
  explicit FixedBlockAvx512(const float* x) {
    const __m512 v[2] = {_mm512_loadu_ps(x), _mm512_loadu_ps(x + 16)};
    const __m512i largest = _mm512_max_epi32(finite_magnitude(v[0]), finite_magnitude(v[1]));
    for (uint32_t exponent = fixed_exponent(static_cast<uint32_t>(_mm512_reduce_max_epi32(largest)));; ++exponent) {
      const FixedScale s = fixed_scale(exponent);
      scale = s.down;
      lost = in_low = 0;
#pragma GCC unroll 2
      for (int i = 0; i < 2; ++i) {
        const __m512i rounded = _mm512_cvtps_epi32(_mm512_mul_ps(v[i], _mm512_set1_ps(s.up)));
        const __mmask16 exact =
            _mm512_cmp_ps_mask(_mm512_mul_ps(_mm512_cvtepi32_ps(rounded), _mm512_set1_ps(s.down)), v[i], _CMP_EQ_OQ);
        code[i] = _mm512_maskz_mov_epi32(exact, rounded);
        lost |= static_cast<uint32_t>(static_cast<__mmask16>(~exact)) << (16 * i);
        in_low |= static_cast<uint32_t>(_mm512_test_epi32_mask(code[i], _mm512_set1_epi32(0xff))) << (16 * i);
      }
      const __m512i sum = _mm512_add_epi32(_mm512_abs_epi32(code[0]), _mm512_abs_epi32(code[1]));
      if (_mm512_reduce_add_epi32(sum) <= kFixedMaxSum) return;  // the second try always succeeds
    }
  }
  void clear(uint32_t bits) {
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) code[i] = _mm512_maskz_mov_epi32(static_cast<__mmask16>(~(bits >> (16 * i))), code[i]);
  }
  void store_planes(uint8_t* upper, uint8_t* low) const {
    const __m512i bias = _mm512_set1_epi32(kFixedBias);
    // The values are ordered k 0 4 1 5 | 2 6 3 7 | ... per 128-bit lane. Then the bytes of each plane are gathered:
    // dword 0 of a lane is the low plane, 1 the middle, 2 the high.
    const __m512i order = _mm512_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15);
    const __m512i gather = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
    __m512i half[2];
    for (int i = 0; i < 2; ++i)
      half[i] = _mm512_shuffle_epi8(_mm512_permutexvar_epi32(order, _mm512_add_epi32(code[i], bias)), gather);
    const __m512i high_middle = _mm512_setr_epi32(2, 6, 10, 14, 18, 22, 26, 30, 1, 5, 9, 13, 17, 21, 25, 29);
    const __m512i lows = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 0, 0, 0, 0, 0, 0, 0, 0);
    _mm512_storeu_si512(upper, _mm512_permutex2var_epi32(half[0], high_middle, half[1]));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(low),
                        _mm512_castsi512_si256(_mm512_permutex2var_epi32(half[0], lows, half[1])));
  }
};

}  // namespace
}  // namespace sluice::kernels::cpu
