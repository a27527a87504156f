// SPDX-License-Identifier: Apache-2.0
// Packed bfloat16 pairs and byte conversions.
#pragma once

#include <cstdint>

namespace sluice::ptx {

// Both halves of `a` times half kHalf (0: low) of `b`, which the instruction selects itself. Subnormal inputs and
// results are kept.
template <int kHalf>
__device__ inline uint32_t mul_bf16x2_by_half(uint32_t a, uint32_t b) {
  uint32_t d;
  asm("{\n.reg .b16 h0, h1;\n.reg .b32 both;\nmov.b32 {h0, h1}, %2;\nmov.b32 both, {h%3, h%3};\n"
      "mul.rn.bf16x2 %0, %1, both;\n}\n"
      : "=r"(d)
      : "r"(a), "r"(b), "n"(kHalf));
  return d;
}
// Round to nearest even; `low` goes to bits 0-15.
__device__ inline uint32_t cvt_bf16x2_f32(float high, float low) {
  uint32_t d;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;\n" : "=r"(d) : "f"(high), "f"(low));
  return d;
}
// The larger magnitude of each half; of a number and NaN the number.
__device__ inline uint32_t max_abs_bf16x2(uint32_t a, uint32_t b) {
  uint32_t d;
  asm("{\n.reg .b32 x, y;\nabs.bf16x2 x, %1;\nabs.bf16x2 y, %2;\nmax.bf16x2 %0, x, y;\n}\n" : "=r"(d) : "r"(a), "r"(b));
  return d;
}
// Round to nearest even; `low` goes to bits 0-15.
__device__ inline uint32_t cvt_f16x2_f32(float high, float low) {
  uint32_t d;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;\n" : "=r"(d) : "f"(high), "f"(low));
  return d;
}
// Round to nearest even, saturating, NaN gives 0x7f; `low` goes to bits 0-7.
__device__ inline uint16_t cvt_e4m3x2_f32(float high, float low) {
  uint16_t d;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;\n" : "=h"(d) : "f"(high), "f"(low));
  return d;
}
// Two e4m3 codes to two halves, exactly; the low byte to bits 0-15.
__device__ inline uint32_t cvt_f16x2_e4m3x2(uint16_t codes) {
  uint32_t d;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;\n" : "=r"(d) : "h"(codes));
  return d;
}
// Two halves to two e4m3 codes; the low half to bits 0-7.
__device__ inline uint16_t cvt_e4m3x2_f16x2(uint32_t halves) {
  uint16_t d;
  asm("cvt.rn.satfinite.e4m3x2.f16x2 %0, %1;\n" : "=h"(d) : "r"(halves));
  return d;
}
__device__ inline void cvt_f32x2_f16x2(uint32_t halves, float& low, float& high) {
  asm("{\n.reg .f16 l, h;\nmov.b32 {l, h}, %2;\ncvt.f32.f16 %0, l;\ncvt.f32.f16 %1, h;\n}\n"
      : "=f"(low), "=f"(high)
      : "r"(halves));
}
__device__ inline uint32_t prmt(uint32_t a, uint32_t b, uint32_t selector) {
  uint32_t d;
  asm("prmt.b32 %0, %1, %2, %3;\n" : "=r"(d) : "r"(a), "r"(b), "r"(selector));
  return d;
}
__device__ inline uint32_t shf_r_wrap(uint32_t a, uint32_t n) {
  uint32_t d;
  asm("shf.r.wrap.b32 %0, %1, %1, %2;\n" : "=r"(d) : "r"(a), "r"(n));
  return d;
}

}  // namespace sluice::ptx
