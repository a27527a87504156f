// SPDX-License-Identifier: Apache-2.0
// What attention's two products multiply, by what pages hold (Page: bf16_t, or uint8_t for e4m3 codes).
//
// bfloat16 pages are multiplied as they are. Codes become halves, exactly, by one instruction for two of them; bfloat16
// takes five. So the other operands are halves as well:
// - A row of queries is scaled by a power of two, so that its largest magnitude lies in [2^14, 2^15). That is exact for
//   elements down to 2^-31 of the largest; what smaller ones lose is below 2^-39 of it.
// - Probabilities are at most 1 and are multiplied by 2^14, for halves below 2^-14 have fewer bits. Their sums have the
//   same factor, which the division by the weights takes out again.
#pragma once

#include <cstdint>

#include "kernels/ptx/bf16x2.cuh"
#include "kernels/ptx/exp2.cuh"
#include "kernels/ptx/mma.cuh"

namespace sluice::sm90 {

template <class Page>
struct Operands {
  static constexpr uint32_t ones = 0x3f803f80u;

  // d [16, 8] += a [16, 16] b [16, 8]
  __device__ static __forceinline__ void multiply(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    ptx::mma_m16n8k16_bf16(d, a, b0, b1);
  }
  // Two probabilities as a pair of high parts and a pair of what these leave over: 17 bits.
  __device__ static __forceinline__ void split(float p0, float p1, uint32_t& high, uint32_t& low) {
    high = ptx::cvt_bf16x2_f32(p1, p0);
    low = ptx::cvt_bf16x2_f32(p1 - __uint_as_float(high & 0xffff0000u), p0 - __uint_as_float(high << 16));
  }
};

template <>
struct Operands<uint8_t> {
  static constexpr uint32_t ones = 0x3c003c00u;
  static constexpr float probability_scale = 16384.0f;

  __device__ static __forceinline__ void multiply(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    ptx::mma_m16n8k16_f16(d, a, b0, b1);
  }
  // 22 bits. Where scores have no bits after the point, their rounded maximum may be less than they are, and a
  // probability more than 1.
  __device__ static __forceinline__ void split(float p0, float p1, uint32_t& high, uint32_t& low) {
    p0 = ptx::at_most(p0, 1.0f) * probability_scale, p1 = ptx::at_most(p1, 1.0f) * probability_scale;
    float high0, high1;
    high = ptx::cvt_f16x2_f32(p1, p0);
    ptx::cvt_f32x2_f16x2(high, high0, high1);
    low = ptx::cvt_f16x2_f32(p1 - high1, p0 - high0);
  }
};

// Codes at bits 0-15 and 16-31 as two pairs of halves.
__device__ __forceinline__ void widen_codes(uint32_t codes, uint32_t& low, uint32_t& high) {
  low = ptx::cvt_f16x2_e4m3x2(static_cast<uint16_t>(codes));
  high = ptx::cvt_f16x2_e4m3x2(static_cast<uint16_t>(codes >> 16));
}

// What a row of queries is multiplied by to become halves, and 1 / that, which its scores are multiplied by.
struct QueryScale {
  float up, down;
};
// max_abs: the largest magnitudes of the row that this lane has, in both halves; four neighbouring lanes share the row.
__device__ __forceinline__ QueryScale query_scale(uint32_t max_abs) {
  // Rows of less than 2^-63 do not fill the range. Infinity and NaN stay what they are.
  constexpr uint32_t kLeastExponent = 127 - 63, kTarget = 127 + 14;
  uint32_t m = max(max_abs & 0xffffu, max_abs >> 16);  // magnitudes are in the order of their bits
  m = max(m, __shfl_xor_sync(0xffffffffu, m, 1));
  m = max(m, __shfl_xor_sync(0xffffffffu, m, 2));
  const uint32_t exponent = max(m >> 7, kLeastExponent);
  return {__uint_as_float((127 + kTarget - exponent) << 23), __uint_as_float((127 + exponent - kTarget) << 23)};
}
__device__ __forceinline__ uint32_t query_halves(uint32_t pair, float up) {
  return ptx::cvt_f16x2_f32(__uint_as_float(pair & 0xffff0000u) * up, __uint_as_float(pair << 16) * up);
}

}  // namespace sluice::sm90
