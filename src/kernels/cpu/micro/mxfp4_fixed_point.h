// SPDX-License-Identifier: Apache-2.0
// What the two MXFP4 integer kernels (mxfp4_few_rows.h, mxfp4_many_rows.h) share: weights as bytes, the parts of a
// FixedPointRow, and adding its outliers.
#pragma once

#include "kernels/cpu/micro/avx512_vector.h"
#include "kernels/cpu/micro/gemm.h"

namespace sluice::kernels::cpu {
namespace {

inline constexpr int kQuadsPerBlock = kFixedBlockK / 4;  // a quad: the four k of one vpdpbusd

// Without this, GCC loads a value again for every use of it.
SLUICE_INLINE __m512i keep(__m512i v) {
  __asm__("" : "+v"(v));
  return v;
}

// 8 k of a panel as bytes 2w: the quads (k0 k4 k1 k5) and (k2 k6 k3 k7) of each weight row.
struct WeightQuads {
  __m512i w[2];
};
SLUICE_INLINE WeightQuads decode_quads(__m512i raw) {
  // 2 * {0, .5, 1, 1.5, 2, 3, 4, 6, -0, ...}
  const __m512i table = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12));
  const __m512i low = _mm512_set1_epi8(0x0f);
  return {{_mm512_shuffle_epi8(table, _mm512_and_si512(raw, low)),
           _mm512_shuffle_epi8(table, _mm512_and_si512(_mm512_srli_epi16(raw, 4), low))}};
}
// sum + the 8 weights of each row.
SLUICE_INLINE __m512i add_quads(__m512i sum, const WeightQuads& q) {
  return dot_bytes(dot_bytes(sum, _mm512_set1_epi8(1), q.w[0]), _mm512_set1_epi8(1), q.w[1]);
}
// Removes what kFixedBias adds to a sum over the upper plane: -128 times the sum of the weights.
SLUICE_INLINE __m512i bias_correction(__m512i weight_sum) {
  return _mm512_sub_epi32(_mm512_setzero_si512(), _mm512_slli_epi32(weight_sum, 7));
}

// One weight of 8 k: its quad is w[quad_of(k)], and a dot with select_byte(k) extracts it.
SLUICE_INLINE __m512i select_byte(uint32_t k) {
  // Byte 0: k 0 and 2, byte 1: 4 and 6, byte 2: 1 and 3, byte 3: 5 and 7.
  return _mm512_set1_epi32(1 << (16 * (k & 1) + 2 * (k & 4)));
}
SLUICE_INLINE uint32_t quad_of(uint32_t k) { return k >> 1 & 1; }

SLUICE_INLINE __m512i broadcast_i32(const uint8_t* p) {
  int32_t v;
  __builtin_memcpy(&v, p, 4);
  return _mm512_set1_epi32(v);
}

// The parts of an input row from the first k of a chunk on.
struct PlanePointers {
  const uint8_t *upper, *low;
  const float* scales;
};

// Where the outputs of panel p begin, in floats. There are two panels per N-tile.
SLUICE_INLINE int out_of(int p) { return p / 2 * kNTileOutStride + p % 2 * 16; }

// The outliers of a row in the chunk at k0.
struct OutlierRange {
  const Outlier *begin, *end;
  OutlierRange(const FixedPointRow& at, const uint8_t* x, int64_t k0) {
    const int32_t* starts = reinterpret_cast<const int32_t*>(x + at.outlier_starts) + 1 + k0 / kFixedChunkK;
    const Outlier* first = reinterpret_cast<const Outlier*>(x + at.outliers);
    begin = first + starts[0];
    end = first + starts[1];
  }
};
SLUICE_INLINE PlanePointers planes_at(const FixedPointRow& at, const uint8_t* x, int64_t k0) {
  return {x + 2 * k0, x + at.low + k0, reinterpret_cast<const float*>(x + at.scales) + k0 / kFixedBlockK * 2};
}
// 2 or 3.
SLUICE_INLINE int num_planes(const FixedPointRow& at, const uint8_t* x) {
  int32_t planes;
  __builtin_memcpy(&planes, x + at.outlier_starts, 4);
  return planes;
}

// Adds the outliers of one row in a chunk to its outputs. weights_at(k, panel) gives 16 weights as integers 2w,
// scales_at(block, panel) their scales.
template <int kPanels, class WeightsAt, class ScalesAt>
SLUICE_INLINE void add_outliers(const OutlierRange& outliers, float* out, WeightsAt weights_at, ScalesAt scales_at) {
  if (outliers.begin == outliers.end) return;
  __m512 acc[kPanels];
#pragma GCC unroll 4
  for (int p = 0; p < kPanels; ++p) acc[p] = _mm512_loadu_ps(out + out_of(p));
  for (const Outlier* o = outliers.begin; o < outliers.end; ++o) {
    const __m512 value = _mm512_set1_ps(o->value);
#pragma GCC unroll 4
    for (int p = 0; p < kPanels; ++p) {
      const __m512 part = _mm512_mul_ps(_mm512_cvtepi32_ps(weights_at(o->k, p)), value);
      acc[p] = _mm512_fmadd_ps(part, scales_at(o->block, p), acc[p]);
    }
  }
#pragma GCC unroll 4
  for (int p = 0; p < kPanels; ++p) _mm512_storeu_ps(out + out_of(p), acc[p]);
}

}  // namespace
}  // namespace sluice::kernels::cpu
