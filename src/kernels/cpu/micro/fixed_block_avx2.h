// SPDX-License-Identifier: Apache-2.0
// A block of 32 values as integers (fixed_point_row.h), with AVX2.
#pragma once

#include "kernels/cpu/micro/fixed_point_row.h"

namespace sluice::kernels::cpu {
namespace {

struct FixedBlockAvx2 {
  __m256i code[4];
  uint32_t lost, in_low;
  float scale;

  SLUICE_INLINE uint32_t bits_of_lanes(__m256i v) {
    return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_castsi256_ps(v)));
  }
  SLUICE_INLINE __m256i finite_magnitude(__m256 v) {
    const __m256i magnitude = _mm256_and_si256(_mm256_castps_si256(v), _mm256_set1_epi32(0x7fffffff));
    return _mm256_and_si256(magnitude, _mm256_cmpgt_epi32(_mm256_set1_epi32(0x7f800000), magnitude));
  }
  explicit FixedBlockAvx2(const float* x) {
    __m256 v[4];
    __m256i largest = _mm256_setzero_si256();
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      v[i] = _mm256_loadu_ps(x + 8 * i);
      largest = _mm256_max_epi32(largest, finite_magnitude(v[i]));
    }
    __m128i of_4 = _mm_max_epi32(_mm256_castsi256_si128(largest), _mm256_extracti128_si256(largest, 1));
    of_4 = _mm_max_epi32(of_4, _mm_shuffle_epi32(of_4, 0x4e));
    of_4 = _mm_max_epi32(of_4, _mm_shuffle_epi32(of_4, 0xb1));
    for (uint32_t exponent = fixed_exponent(static_cast<uint32_t>(_mm_cvtsi128_si32(of_4)));; ++exponent) {
      const FixedScale s = fixed_scale(exponent);
      scale = s.down;
      lost = in_low = 0;
      __m256i sum = _mm256_setzero_si256();
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        const __m256i rounded = _mm256_cvtps_epi32(_mm256_mul_ps(v[i], _mm256_set1_ps(s.up)));
        const __m256i exact = _mm256_castps_si256(
            _mm256_cmp_ps(_mm256_mul_ps(_mm256_cvtepi32_ps(rounded), _mm256_set1_ps(s.down)), v[i], _CMP_EQ_OQ));
        code[i] = _mm256_and_si256(rounded, exact);
        const __m256i no_low =
            _mm256_cmpeq_epi32(_mm256_and_si256(code[i], _mm256_set1_epi32(0xff)), _mm256_setzero_si256());
        lost |= (bits_of_lanes(exact) ^ 0xff) << (8 * i);
        in_low |= (bits_of_lanes(no_low) ^ 0xff) << (8 * i);
        sum = _mm256_add_epi32(sum, _mm256_abs_epi32(code[i]));
      }
      __m128i sum_4 = _mm_add_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
      sum_4 = _mm_add_epi32(sum_4, _mm_shuffle_epi32(sum_4, 0x4e));
      sum_4 = _mm_add_epi32(sum_4, _mm_shuffle_epi32(sum_4, 0xb1));
      if (_mm_cvtsi128_si32(sum_4) <= kFixedMaxSum) return;  // the second try always succeeds
    }
  }
  void clear(uint32_t bits) {
    const __m256i lanes = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const __m256i of_8 = _mm256_and_si256(_mm256_set1_epi32(static_cast<int>(bits >> (8 * i))), lanes);
      code[i] = _mm256_and_si256(code[i], _mm256_cmpeq_epi32(of_8, _mm256_setzero_si256()));
    }
  }
  void store_planes(uint8_t* upper, uint8_t* low) const {
    const __m256i bias = _mm256_set1_epi32(kFixedBias);
    // The values are ordered k 0 4 1 5 | 2 6 3 7 per 128-bit lane. Then the bytes of each plane are gathered: dword 0
    // of a lane is the low plane, 1 the middle, 2 the high. The same order again puts the dwords of a plane side by
    // side.
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    const __m256i gather =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const __m256i ordered = _mm256_permutevar8x32_epi32(_mm256_add_epi32(code[i], bias), order);
      const __m256i planes = _mm256_permutevar8x32_epi32(_mm256_shuffle_epi8(ordered, gather), order);
      const __m128i low_middle = _mm256_castsi256_si128(planes);
      _mm_storel_epi64(reinterpret_cast<__m128i*>(low + 8 * i), low_middle);
      _mm_storel_epi64(reinterpret_cast<__m128i*>(upper + 32 + 8 * i), _mm_unpackhi_epi64(low_middle, low_middle));
      _mm_storel_epi64(reinterpret_cast<__m128i*>(upper + 8 * i), _mm256_extracti128_si256(planes, 1));
    }
  }
};

}  // namespace
}  // namespace sluice::kernels::cpu
