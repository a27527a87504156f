// SPDX-License-Identifier: Apache-2.0
// Packed weights to the registers of a wgmma A operand: one k-block of 64 rows x 64 columns, 16 words per thread.
// Word 4*s + j holds columns 16*s + 8*(j/2) + 2*(lane%4) + {0,1} of row lane/4 + 8*(j%2) of the warp's 16 rows.
//
// A code's bits are placed into a bf16 with its exponent field unbiased, a number 2^126 (e2m1) or 2^120 (e4m3) too
// small; one bf16 multiplication by scale * 2^118 (* 2^120) repairs that, applies the block scale and is exact, because
// products have at most 6 significant bits. The remaining power of two is in the row's float scale.
#pragma once

#include "kernels/ptx/bf16x2.cuh"
#include "kernels/sm90/layout.h"

namespace sluice::sm90 {

// e2m1: eight codes of a word. Bits of registers 0..2 are moved as a whole; those of register 3 are what remains.
__device__ inline void expand_e2m1(uint32_t w, uint32_t (&a)[4]) {
  a[0] = (w << 6) & 0x81c081c0u;
  a[1] = (w << 2) & 0x81c081c0u;
  a[2] = ptx::shf_r_wrap(w, 4) & 0x81c081c0u;
  a[3] = (w & 0x81808180u) | ((w >> 8) & 0x00400040u);
}
// The inverse, for repacking: byte i holds the two codes of register i, the even column's in its lower half.
__device__ inline uint32_t place_e2m1(uint32_t codes) {
  const uint32_t even = (codes & 0x000f000fu) | ((codes >> 4) & 0x00f000f0u);
  const uint32_t odd = ((codes >> 4) & 0x000f000fu) | ((codes >> 8) & 0x00f000f0u);
  const uint32_t x = ptx::prmt(even, odd, 0x6420u);  // in each half four codes, register 0's lowest
  // What is in place; registers 2 and 3 without sign and exponent; exponent of 3; signs of 0 and 1; sign of 2.
  return (x & 0x80778077u) | ((x << 2) & 0x5c005c00u) | ((x >> 6) & 0x01800180u) | ((x << 6) & 0x22002200u) |
         (ptx::shf_r_wrap(x, 24) & 0x00080008u);
}

// e4m3: two registers of a word; the even one is already in place.
__device__ inline void expand_e4m3(uint32_t w, uint32_t& a0, uint32_t& a1) {
  a0 = w & 0x87f087f0u;
  a1 = ((w << 4) & 0x80f080f0u) | ((w >> 4) & 0x07000700u);
}
// even, odd: two codes of such a register in the low bytes of their halves.
__device__ inline uint32_t place_e4m3(uint32_t even, uint32_t odd) {
  return ((even << 4) & 0x07f007f0u) | ((even << 8) & 0x80008000u) | (odd & 0x000f000fu) | ((odd << 8) & 0x70007000u) |
         ((odd << 4) & 0x08000800u);
}

// The scales of a group for both rows of a thread, as the bf16 halves of a word: bytes 2 * (i % 2) and the next one of
// `word`, times a power of two, plus `add`. A multiplication, which runs beside the shifts and masks that bound this
// decode.
template <int i>
__device__ inline uint32_t scale_pair(uint32_t word, uint32_t factor, uint32_t add) {
  uint32_t d;
  const uint32_t bytes = ptx::prmt(word, 0u, i % 2 == 0 ? 0x4140u : 0x4342u);
  asm("mad.lo.u32 %0, %1, %2, %3;\n" : "=r"(d) : "r"(bytes), "r"(factor), "r"(add));
  return d;
}
// Registers 0 and 2 of a step are row lane/4's, 1 and 3 row lane/4 + 8's.
__device__ inline void scale_step(const uint32_t (&e)[4], uint32_t scales, uint32_t* a) {
  a[0] = ptx::mul_bf16x2_by_half<0>(e[0], scales);
  a[1] = ptx::mul_bf16x2_by_half<1>(e[1], scales);
  a[2] = ptx::mul_bf16x2_by_half<0>(e[2], scales);
  a[3] = ptx::mul_bf16x2_by_half<1>(e[3], scales);
}

template <WeightOperand op>
struct Decode;

template <>
struct Decode<WeightOperand::nvfp4> {
  // Scale bytes: 5 exponent bits, 3 mantissa bits, exponent bias 10; v * 2^118 as a bf16 is (byte << 4) + 0x7580.
  struct Packed {
    uint4 w;
    uint2 s;
  };
  __device__ static Packed fetch(const uint8_t* smem, int wg, int thread) {
    return {*reinterpret_cast<const uint4*>(smem + wg * 2048 + thread * 16),
            *reinterpret_cast<const uint2*>(smem + 4096 + wg * 256 + (thread >> 2) * 8)};
  }
  __device__ static void expand(const Packed& p, uint32_t (&a)[16]) {
    const uint4 w = p.w;
    const uint2 s = p.s;
    step<0>(w.x, s.x, a);
    step<1>(w.y, s.x, a + 4);
    step<2>(w.z, s.y, a + 8);
    step<3>(w.w, s.y, a + 12);
  }
  template <int i>
  __device__ static void step(uint32_t w, uint32_t s, uint32_t* a) {
    uint32_t e[4];
    expand_e2m1(w, e);
    scale_step(e, scale_pair<i>(s, 0x10u, 0x75807580u), a);
  }
};

// Scale bytes of the MX operands are the exponent field of the bf16 multiplier itself.
template <>
struct Decode<WeightOperand::mxfp4> {
  struct Packed {
    uint4 w;
    uint32_t s;
  };
  __device__ static Packed fetch(const uint8_t* smem, int wg, int thread) {
    return {*reinterpret_cast<const uint4*>(smem + wg * 2048 + thread * 16),
            *reinterpret_cast<const uint32_t*>(smem + 4096 + wg * 128 + (thread >> 2) * 4)};
  }
  __device__ static void expand(const Packed& p, uint32_t (&a)[16]) {
    const uint4 w = p.w;
    const uint32_t s = p.s;
    const uint32_t s0 = scale_pair<0>(s, 0x80u, 0u), s1 = scale_pair<1>(s, 0x80u, 0u);
    step(w.x, s0, a);
    step(w.y, s0, a + 4);
    step(w.z, s1, a + 8);
    step(w.w, s1, a + 12);
  }
  __device__ static void step(uint32_t w, uint32_t scales, uint32_t* a) {
    uint32_t e[4];
    expand_e2m1(w, e);
    scale_step(e, scales, a);
  }
};

template <>
struct Decode<WeightOperand::mxfp8> {
  struct Packed {
    uint4 w0, w1;
    uint32_t s;
  };
  __device__ static Packed fetch(const uint8_t* smem, int wg, int thread) {
    return {*reinterpret_cast<const uint4*>(smem + wg * 4096 + thread * 16),
            *reinterpret_cast<const uint4*>(smem + wg * 4096 + 2048 + thread * 16),
            *reinterpret_cast<const uint32_t*>(smem + 8192 + wg * 128 + (thread >> 2) * 4)};
  }
  __device__ static void expand(const Packed& p, uint32_t (&a)[16]) {
    const uint4 w0 = p.w0, w1 = p.w1;
    const uint32_t s = p.s;
    const uint32_t s0 = scale_pair<0>(s, 0x80u, 0u), s1 = scale_pair<1>(s, 0x80u, 0u);
    step(w0.x, w0.y, s0, a);
    step(w0.z, w0.w, s0, a + 4);
    step(w1.x, w1.y, s1, a + 8);
    step(w1.z, w1.w, s1, a + 12);
  }
  __device__ static void step(uint32_t w0, uint32_t w1, uint32_t scales, uint32_t* a) {
    uint32_t e[4];
    expand_e4m3(w0, e[0], e[1]);
    expand_e4m3(w1, e[2], e[3]);
    scale_step(e, scales, a);
  }
};

template <>
struct Decode<WeightOperand::fp8_f32> : Decode<WeightOperand::mxfp8> {};
template <>
struct Decode<WeightOperand::fp8_block_f32> : Decode<WeightOperand::mxfp8> {};

}  // namespace sluice::sm90
