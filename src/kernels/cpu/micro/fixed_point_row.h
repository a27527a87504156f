// SPDX-License-Identifier: Apache-2.0
// Packs input rows of bfloat16 values as FixedPointRow (packed_layout.h), with AVX-512.
#pragma once

#include "kernels/cpu/micro/inline.h"
#include "kernels/cpu/micro/row_ops.h"

namespace sluice::kernels::cpu {
namespace {

// A row uses a third plane if two would leave more outliers than this per block on average. A third plane costs 8 dots
// per block of 32 k, and one outlier costs about as much.
inline constexpr int kOutliersPerBlock = 1;

// 16 values of a block as integers.
struct FixedHalfBlock {
  __m512i code;
  __mmask16 lost;    // values that three planes cannot hold
  __mmask16 in_low;  // values that three planes hold and two do not
};
// `up` is the power of two that makes integers of `x`, and `down` is its inverse.
SLUICE_INLINE FixedHalfBlock to_fixed(__m512 x, __m512 up, __m512 down) {
  FixedHalfBlock h;
  const __m512i code = _mm512_cvtps_epi32(_mm512_mul_ps(x, up));
  const __mmask16 exact = _mm512_cmp_ps_mask(_mm512_mul_ps(_mm512_cvtepi32_ps(code), down), x, _CMP_EQ_OQ);
  h.code = _mm512_maskz_mov_epi32(exact, code);
  h.lost = static_cast<__mmask16>(~exact);
  h.in_low = _mm512_test_epi32_mask(h.code, _mm512_set1_epi32(0xff));
  return h;
}

struct FixedBlock {
  FixedHalfBlock half[2];
  float scale;  // value = code * scale
};
// x: the 32 values of a block.
SLUICE_INLINE FixedBlock to_fixed_block(const float* x) {
  const __m512 a = _mm512_loadu_ps(x), b = _mm512_loadu_ps(x + 16);
  const __m512i infinity = _mm512_set1_epi32(0x7f800000);
  const auto finite = [&](__m512 v) __attribute__((always_inline)) {
    const __m512i magnitude = _mm512_castps_si512(_mm512_abs_ps(v));
    return _mm512_maskz_mov_epi32(_mm512_cmplt_epi32_mask(magnitude, infinity), magnitude);
  };
  const auto largest = static_cast<uint32_t>(_mm512_reduce_max_epi32(_mm512_max_epi32(finite(a), finite(b))));
  // The biased exponent. 2^-100 is the least, so that no factor is subnormal.
  uint32_t exponent = largest >> 23 > 27 ? largest >> 23 : 27;
  FixedBlock c;
  for (;; ++exponent) {
    c.scale = float_of((exponent - 22) << 23);
    const __m512 up = _mm512_set1_ps(float_of((276 - exponent) << 23)), down = _mm512_set1_ps(c.scale);
    c.half[0] = to_fixed(a, up, down);
    c.half[1] = to_fixed(b, up, down);
    const __m512i sum = _mm512_add_epi32(_mm512_abs_epi32(c.half[0].code), _mm512_abs_epi32(c.half[1].code));
    if (_mm512_reduce_add_epi32(sum) <= kFixedMaxSum) return c;  // the second try always succeeds
  }
}

// Stores the planes of a block: 64 bytes of the upper two to `upper`, 32 bytes of the low one to `low`.
SLUICE_INLINE void store_planes(const FixedBlock& c, uint8_t* upper, uint8_t* low) {
  const __m512i bias = _mm512_set1_epi32(kFixedBias);
  // The values are ordered k 0 4 1 5 | 2 6 3 7 | ... per 128-bit lane. Then the bytes of each plane are gathered: dword
  // 0 of a lane is the low plane, 1 the middle, 2 the high.
  const __m512i order = _mm512_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15);
  const __m512i gather = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
  __m512i half[2];
  for (int i = 0; i < 2; ++i)
    half[i] = _mm512_shuffle_epi8(_mm512_permutexvar_epi32(order, _mm512_add_epi32(c.half[i].code, bias)), gather);
  const __m512i high_middle = _mm512_setr_epi32(2, 6, 10, 14, 18, 22, 26, 30, 1, 5, 9, 13, 17, 21, 25, 29);
  const __m512i lows = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 0, 0, 0, 0, 0, 0, 0, 0);
  _mm512_storeu_si512(upper, _mm512_permutex2var_epi32(half[0], high_middle, half[1]));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(low),
                      _mm512_castsi512_si256(_mm512_permutex2var_epi32(half[0], lows, half[1])));
}

// Writes x [padded], bfloat16 values as floats, as a FixedPointRow at `out`. Every value is stored exactly, in the
// planes or in the list of outliers. There are two loops, because the number of planes depends on the whole row.
static void write_fixed_point_row(const float* x, int64_t padded, uint8_t* out) {
  const FixedPointRow at(padded);
  float* const scales = reinterpret_cast<float*>(out + at.scales);
  int32_t* const outlier_starts = reinterpret_cast<int32_t*>(out + at.outlier_starts);
  Outlier* const outliers = reinterpret_cast<Outlier*>(out + at.outliers);
  const int64_t blocks = padded / kFixedBlockK;
  int64_t in_low = 0;
  for (int64_t b = 0; b < blocks; ++b) {
    const FixedBlock c = to_fixed_block(x + b * kFixedBlockK);
    store_planes(c, out + 64 * b, out + at.low + 32 * b);
    scales[2 * b] = c.scale * 256.0f * kFixedFactor;
    scales[2 * b + 1] = c.scale * kFixedFactor;
    in_low += __builtin_popcount(c.half[0].in_low) + __builtin_popcount(c.half[1].in_low);
  }
  const int planes = in_low > kOutliersPerBlock * blocks ? 3 : 2;
  outlier_starts[0] = planes;
  int32_t count = 0;
  for (int64_t b = 0; b < blocks; ++b) {
    const int64_t k = b * kFixedBlockK, chunk = k / kFixedChunkK;
    if (k % kFixedChunkK == 0) outlier_starts[1 + chunk] = count;
    FixedBlock c = to_fixed_block(x + k);
    uint32_t listed = c.half[0].lost | static_cast<uint32_t>(c.half[1].lost) << 16;
    if (planes == 2) {
      const uint32_t low = c.half[0].in_low | static_cast<uint32_t>(c.half[1].in_low) << 16;
      if (low != 0) {
        for (FixedHalfBlock& h : c.half) h.code = _mm512_maskz_mov_epi32(static_cast<__mmask16>(~h.in_low), h.code);
        store_planes(c, out + 64 * b, out + at.low + 32 * b);
      }
      listed |= low;
    }
    for (; listed != 0; listed &= listed - 1) {
      const int i = __builtin_ctz(listed);
      outliers[count++] = {x[k + i] * kFixedFactor, static_cast<uint16_t>(k % kFixedChunkK + i),
                           static_cast<uint16_t>(k % kFixedChunkK / kFixedBlockK)};
    }
  }
  outlier_starts[1 + (padded + kFixedChunkK - 1) / kFixedChunkK] = count;
}

// A PackRowFn for every PackedType.
static void pack_row_avx512(const PackRowArgs& a) {
  if (a.target.type != PackedType::fixed_point) return pack_row(a);
  PackRowArgs floats = a;
  floats.target.type = PackedType::f32;
  floats.target.data = a.staging;
  pack_row(floats);
  write_fixed_point_row(a.staging, a.target.padded_n, static_cast<uint8_t*>(a.target.data));
}

}  // namespace
}  // namespace sluice::kernels::cpu
