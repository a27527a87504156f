// SPDX-License-Identifier: Apache-2.0
// Elements of the run's type D, bfloat16 or float32, as float32: one at a time or 16 bytes at once.
#pragma once

#include <type_traits>

#include "base/bf16.h"
#include "kernels/ptx/bf16x2.cuh"

namespace sluice::sm90 {

// D is bf16_t or float.
template <class D>
inline constexpr int kPerVector = 16 / static_cast<int>(sizeof(D));

template <class D>
__device__ __forceinline__ float to_float(D v) {
  if constexpr (std::is_same_v<D, bf16_t>)
    return bf16_to_float(v);
  else
    return v;
}
template <class D>
__device__ __forceinline__ D from_float(float v) {
  if constexpr (std::is_same_v<D, bf16_t>)
    return static_cast<bf16_t>(ptx::cvt_bf16x2_f32(0.0f, v));
  else
    return v;
}
// To D and back. The lower half of the word is bfloat16's zero, so the word is the float.
template <class D>
__device__ __forceinline__ float rounded(float v) {
  if constexpr (std::is_same_v<D, bf16_t>)
    return __uint_as_float(ptx::cvt_bf16x2_f32(v, 0.0f));
  else
    return v;
}

// N neighbours, in accesses of 16 bytes where N fills them; then the address must be a multiple of 16.
template <int N, class D>
__device__ __forceinline__ void load_elements(const D* from, float (&v)[N]) {
  if constexpr (N % kPerVector<D> == 0) {
#pragma unroll
    for (int i = 0; i < N; i += kPerVector<D>) {
      const uint4 w = *reinterpret_cast<const uint4*>(from + i);
      const uint32_t words[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if constexpr (std::is_same_v<D, bf16_t>) {
          v[i + 2 * j] = __uint_as_float(words[j] << 16);
          v[i + 2 * j + 1] = __uint_as_float(words[j] & 0xffff0000u);
        } else {
          v[i + j] = __uint_as_float(words[j]);
        }
      }
    }
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i) v[i] = to_float(from[i]);
  }
}
template <int N, class D>
__device__ __forceinline__ void store_elements(const float (&v)[N], D* to) {
  if constexpr (N % kPerVector<D> == 0) {
#pragma unroll
    for (int i = 0; i < N; i += kPerVector<D>) {
      uint32_t words[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if constexpr (std::is_same_v<D, bf16_t>)
          words[j] = ptx::cvt_bf16x2_f32(v[i + 2 * j + 1], v[i + 2 * j]);
        else
          words[j] = __float_as_uint(v[i + j]);
      }
      *reinterpret_cast<uint4*>(to + i) = {words[0], words[1], words[2], words[3]};
    }
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i) to[i] = from_float<D>(v[i]);
  }
}

// The sum over the lanes of a group of `kLanes` neighbours, in one order.
template <int kLanes = 32>
__device__ __forceinline__ float lanes_sum(float v) {
#pragma unroll
  for (int i = kLanes / 2; i > 0; i /= 2) v += __shfl_xor_sync(0xffffffffu, v, i);
  return v;
}
// The sum over a block of kThreads threads; `shared` holds kThreads / 32 floats and may be reused after the next
// barrier.
template <int kThreads>
__device__ __forceinline__ float block_sum(float v, float* shared) {
  v = lanes_sum(v);
  if ((threadIdx.x & 31) == 0) shared[threadIdx.x >> 5] = v;
  __syncthreads();
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kThreads / 32; ++i) sum += shared[i];
  return sum;
}

// Of a value that is then rounded to D. Before bfloat16 the quotient may be 2 ulp of float32 off, and 0 where its
// magnitude is below 2^-119: an exact division takes as many instructions as all else.
template <class D>
__device__ __forceinline__ float silu(float x) {
  const float divisor = 1.0f + expf(-x);
  if constexpr (std::is_same_v<D, bf16_t>)
    return __fdividef(x, divisor);
  else
    return __fdiv_rn(x, divisor);
}

}  // namespace sluice::sm90
