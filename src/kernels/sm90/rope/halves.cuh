// SPDX-License-Identifier: Apache-2.0
// Heads of 16 kLanes values whose rotary pairs are the two halves, in registers: kLanes neighbouring lanes hold a head,
// each eight values of either half. The arithmetic of rope.cu and of attention_tokens.cuh, which must give the same
// bits.
#pragma once

#include "kernels/sm90/elements.cuh"

namespace sluice::sm90 {

inline constexpr int kHalfValues = 8;  // of either half, in a lane

// The sum of a head's squares. All lanes of the warp call it together.
template <int kLanes>
__device__ __forceinline__ float halves_squares(const float (&p)[kHalfValues], const float (&q)[kHalfValues]) {
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kHalfValues; ++i) sum = fmaf(q[i], q[i], fmaf(p[i], p[i], sum));
  return lanes_sum<kLanes>(sum);
}

// first, second: the weights of p and q.
template <int kLanes>
__device__ __forceinline__ void norm_halves(float (&p)[kHalfValues], float (&q)[kHalfValues], float squares, float eps,
                                            const float (&first)[kHalfValues], const float (&second)[kHalfValues]) {
  const float factor = __frcp_rn(__fsqrt_rn(squares / static_cast<float>(16 * kLanes) + eps));
#pragma unroll
  for (int i = 0; i < kHalfValues; ++i) {
    p[i] = rounded<bf16_t>(rounded<bf16_t>(p[i] * factor) * first[i]);
    q[i] = rounded<bf16_t>(rounded<bf16_t>(q[i] * factor) * second[i]);
  }
}

__device__ __forceinline__ void rotate_halves(float (&p)[kHalfValues], float (&q)[kHalfValues],
                                              const float (&cosine)[kHalfValues], const float (&sine)[kHalfValues]) {
#pragma unroll
  for (int i = 0; i < kHalfValues; ++i) {
    const float first = p[i], second = q[i];
    p[i] = __fsub_rn(rounded<bf16_t>(__fmul_rn(first, cosine[i])), rounded<bf16_t>(__fmul_rn(second, sine[i])));
    q[i] = __fadd_rn(rounded<bf16_t>(__fmul_rn(second, cosine[i])), rounded<bf16_t>(__fmul_rn(first, sine[i])));
  }
}

// The element of pages [blocks, heads, block_size, dim] that head h of slot `slot` begins with.
__device__ __forceinline__ int64_t page_element(int slot, int h, int heads, int block_size, int dim) {
  const int block = slot / block_size, offset = slot % block_size;
  return ((static_cast<int64_t>(block) * heads + h) * block_size + offset) * static_cast<int64_t>(dim);
}

// N codes of v / scale; N 1 or a multiple of 4, and then at an address that is one.
template <int N>
__device__ __forceinline__ void store_codes(const float (&v)[N], float scale, uint8_t* to) {
  if constexpr (N == 1) {
    *to = static_cast<uint8_t>(ptx::cvt_e4m3x2_f32(0.0f, __fdiv_rn(v[0], scale)));
  } else {
    static_assert(N % 4 == 0);
#pragma unroll
    for (int i = 0; i < N; i += 4)
      *reinterpret_cast<uint32_t*>(to + i) =
          ptx::cvt_e4m3x2_f32(__fdiv_rn(v[i + 1], scale), __fdiv_rn(v[i], scale)) |
          static_cast<uint32_t>(ptx::cvt_e4m3x2_f32(__fdiv_rn(v[i + 3], scale), __fdiv_rn(v[i + 2], scale))) << 16;
  }
}

}  // namespace sluice::sm90
