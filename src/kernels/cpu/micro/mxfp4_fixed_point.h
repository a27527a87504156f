// SPDX-License-Identifier: Apache-2.0
// What the two MXFP4 integer kernels (mxfp4_few_rows.h, mxfp4_many_rows.h) share: weights as bytes, the parts of a
// FixedPointRow, and adding its outliers.
#pragma once

#include "kernels/cpu/micro/gemm.h"

namespace sluice::kernels::cpu {
namespace {

inline constexpr int kQuadsPerBlock = kFixedBlockK / 4;  // a quad: the four k of one vpdpbusd

// 8 k of a panel as bytes 2w: the quads (k0 k4 k1 k5) and (k2 k6 k3 k7) of each weight row.
template <class V>
struct WeightQuads {
  typename V::Bytes w[2];
};
template <class V>
SLUICE_INLINE WeightQuads<V> decode_quads(const typename V::Bytes& codes) {
  // 2 * {0, .5, 1, 1.5, 2, 3, 4, 6, -0, ...}
  const __m128i table = _mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12);
  WeightQuads<V> q;
  V::look_up_nibbles(table, codes, q.w[0], q.w[1]);
  return q;
}
// What removes kFixedBias from a sum over the upper plane: -128 times the sum of the weights. weight_bytes: the sums of
// the 8 bytes at the same place in the 8 quads of a block, at most 96.
template <class V>
SLUICE_INLINE typename V::Ints bias_correction(const typename V::Bytes& weight_bytes) {
  return V::negative(V::template shift_left<7>(V::sum_of_quads(weight_bytes)));
}

// Where one weight of 8 k lies: in quad w[quad_of(k)], byte byte_of(k).
constexpr uint32_t quad_of(uint32_t k) { return k >> 1 & 1; }
constexpr uint32_t byte_of(uint32_t k) { return 2 * (k & 1) + (k >> 2 & 1); }

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
template <class V, int kPanels, class WeightsAt, class ScalesAt>
SLUICE_INLINE void add_outliers(const OutlierRange& outliers, float* out, WeightsAt weights_at, ScalesAt scales_at) {
  if (outliers.begin == outliers.end) return;
  typename V::F acc[kPanels];
#pragma GCC unroll 4
  for (int p = 0; p < kPanels; ++p) acc[p] = V::load(out + out_of(p));
  for (const Outlier* o = outliers.begin; o < outliers.end; ++o) {
    const typename V::F value = V::broadcast_f32(&o->value);
#pragma GCC unroll 4
    for (int p = 0; p < kPanels; ++p) {
      const typename V::F part = V::multiply(V::to_floats(weights_at(o->k, p)), value);
      acc[p] = V::multiply_add_f32(part, scales_at(o->block, p), acc[p]);
    }
  }
#pragma GCC unroll 4
  for (int p = 0; p < kPanels; ++p) V::store(out + out_of(p), acc[p]);
}

}  // namespace
}  // namespace sluice::kernels::cpu
