// SPDX-License-Identifier: Apache-2.0
// Rounding of eight values of a group whose amax is known. The arithmetic is format/quantize.h's; only the last
// conversion to e4m3 is the hardware's, which rounds and saturates alike.
#pragma once

#include "format/quantize.h"
#include "kernels/ptx/bf16x2.cuh"
#include "kernels/ptx/divide.cuh"
#include "kernels/sm90/grouped_gemm/args.h"

namespace sluice::sm90 {

// Columns that share a block scale; 0: none, or the whole row.
HD constexpr int group_columns(Round r) {
  return r == Round::mxfp8 ? 32 : r == Round::nvfp4 || r == Round::nvfp4_token ? 16 : r == Round::fp8_group ? 128 : 0;
}

__device__ inline uint32_t e4m3_codes4(const float* v) {
  return static_cast<uint32_t>(ptx::cvt_e4m3x2_f32(v[1], v[0])) | static_cast<uint32_t>(ptx::cvt_e4m3x2_f32(v[3], v[2]))
                                                                      << 16;
}

// v rounded to e4m3 and read back: 4 values.
__device__ inline void e4m3_values4(float* v) {
  const uint32_t low = ptx::cvt_f16x2_e4m3x2(ptx::cvt_e4m3x2_f32(v[1], v[0]));
  const uint32_t high = ptx::cvt_f16x2_e4m3x2(ptx::cvt_e4m3x2_f32(v[3], v[2]));
  ptx::cvt_f32x2_f16x2(low, v[0], v[1]);
  ptx::cvt_f32x2_f16x2(high, v[2], v[3]);
}

// v rounded to e2m1 and read back. Steps are half the value's power of two, at least 1/2; adding 1.5 * 2^23 steps and
// taking them off again rounds to a multiple, ties to the even one, which is the even code. Beyond 6, and for NaN: 6.
__device__ inline float e2m1_value(float v) {
  const float power = fmaxf(__uint_as_float(__float_as_uint(v) & 0x7f800000u), 1.0f);
  const float rounded = fmaf(power, -6291456.0f, fmaf(power, 6291456.0f, v));
  return copysignf(fminf(fabsf(rounded), 6.0f), v);
}

// The value of format::nvfp4_scale.
__device__ inline float block_scale(uint32_t amax, format::Nvfp4Global global) {
  const float x = format::amax_value(amax) * (global.encode * (1.0f / 6.0f));
  float low, high;
  ptx::cvt_f32x2_f16x2(ptx::cvt_f16x2_e4m3x2(ptx::cvt_e4m3x2_f32(0.0f, x)), low, high);
  return low;
}
// format::fp8_scale and format::nvfp4_inverse without the compiler's division (divide.cuh).
__device__ inline float group_scale(uint32_t amax) {
  const float s = ptx::divide(format::amax_value(amax), format::kE4m3Max);
  return s < FLT_MIN ? FLT_MIN : s;
}
__device__ inline float block_inverse(float scale, format::Nvfp4Global global) {
  const float d = scale * global.decode;
  // Below 2^-100 the reciprocal is taken of 2^24 times as much: d may be subnormal.
  const float shift = d < 0x1p-100f ? 0x1p24f : 1.0f;
  return d == 0.0f ? FLT_MAX : format::at_most_float_max(ptx::divide(1.0f, d * shift) * shift);
}

// What the bf16 operand of the next GEMM holds for v[8]: codes times block scales, exact in bf16. Static and row
// factors and those of 128 columns stay outside: they multiply GEMM results or sums.
__device__ inline uint4 rounded_bf16(Round round, const float (&v)[8], uint32_t amax, format::Nvfp4Global global,
                                     float static_inverse, float divisor) {
  float r[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) r[i] = v[i];
  if (round == Round::mxfp8) {
    const uint8_t b = format::mxfp8_scale(format::amax_value(amax));
    const float inverse = format::e8m0_inverse(b), scale = format::e8m0_to_float(b);
#pragma unroll
    for (int i = 0; i < 8; ++i) r[i] *= inverse;
    e4m3_values4(r);
    e4m3_values4(r + 4);
#pragma unroll
    for (int i = 0; i < 8; ++i) r[i] *= scale;
  } else if (round == Round::nvfp4 || round == Round::nvfp4_token) {
    const float scale = block_scale(amax, global), inverse = block_inverse(scale, global);
#pragma unroll
    for (int i = 0; i < 8; ++i) r[i] = e2m1_value(r[i] * inverse) * scale;
  } else if (round != Round::plain) {  // fp8_static, fp8_token, fp8_group
#pragma unroll
    for (int i = 0; i < 8; ++i) r[i] = round == Round::fp8_static ? r[i] * static_inverse : ptx::divide(r[i], divisor);
    e4m3_values4(r);
    e4m3_values4(r + 4);
  }
  return {ptx::cvt_bf16x2_f32(r[1], r[0]), ptx::cvt_bf16x2_f32(r[3], r[2]), ptx::cvt_bf16x2_f32(r[5], r[4]),
          ptx::cvt_bf16x2_f32(r[7], r[6])};
}

// e4m3 codes of v[8]; `factor` multiplies (fp8_static) or divides.
__device__ inline uint2 rounded_e4m3(Round round, const float (&v)[8], float factor) {
  float r[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) r[i] = round == Round::fp8_static ? v[i] * factor : ptx::divide(v[i], factor);
  return {e4m3_codes4(r), e4m3_codes4(r + 4)};
}

__device__ inline uint32_t amax8(const float (&v)[8]) {
  uint32_t bits = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) bits = format::amax_bits(bits, v[i]);
  return bits;
}
// Over `lanes` neighbouring lanes (a power of two).
__device__ inline uint32_t amax_lanes(uint32_t bits, int lanes) {
  for (int step = 1; step < lanes; step *= 2) {
    const uint32_t other = __shfl_xor_sync(0xffffffffu, bits, step);
    bits = other > bits ? other : bits;
  }
  return bits;
}

}  // namespace sluice::sm90
