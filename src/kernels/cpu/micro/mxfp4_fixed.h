// SPDX-License-Identifier: Apache-2.0
// What both ways of the MXFP4 dot (mxfp4_dot.h) share: weights as bytes, where a row's planes lie, and its rest.
#pragma once

#include "kernels/cpu/micro/tile.h"

namespace sluice::kernels::cpu {
namespace {

inline constexpr int kFixedQuads = kFixedBlock / 4;

// GCC would load a value again for every use of it.
SLUICE_INLINE __m512i keep(__m512i v) {
  __asm__("" : "+v"(v));
  return v;
}

// 8 k of a panel as bytes 2w: (k0 k4 k1 k5), (k2 k6 k3 k7) of each row.
struct FixedQuads {
  __m512i w[2];
};
SLUICE_INLINE FixedQuads decode_quads(__m512i raw) {
  // 2 * {0, .5, 1, 1.5, 2, 3, 4, 6, -0, ...}
  const __m512i table = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12));
  const __m512i low = _mm512_set1_epi8(0x0f);
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

// Where the outputs of panel p begin: two panels a unit.
SLUICE_INLINE int out_of(int p) { return p / 2 * kUnitOut + p % 2 * 16; }

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

}  // namespace
}  // namespace sluice::kernels::cpu
