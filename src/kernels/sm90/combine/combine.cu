// SPDX-License-Identifier: Apache-2.0
#include "kernels/ptx/bf16x2.cuh"
#include "kernels/ptx/sync.cuh"
#include "kernels/sm90/combine/combine.h"
#include "kernels/sm90/launch.cuh"
#include "kernels/sm90/route/route.h"

namespace sluice::sm90 {

namespace {

constexpr int kThreads = 128;

// A thread 8 columns of one token when rows are 16-byte aligned, else 1.
template <int kWidth>
__device__ void combine_token(const CombineArgs& a, int64_t token, const int* present, const float* weights) {
  for (int column = (blockIdx.y * kThreads + threadIdx.x) * kWidth; column < a.columns;
       column += gridDim.y * kThreads * kWidth) {
    float acc[kWidth] = {};
#pragma unroll 4
    for (int k = 0; k < a.top_k; ++k) {
      if (present[k] == 0) continue;
      const int64_t at = (token * a.top_k + k) * a.columns + column;
      const float w = weights[k];
      if (a.f32) {
#pragma unroll
        for (int i = 0; i < kWidth; ++i) acc[i] = fmaf(w, static_cast<const float*>(a.results)[at + i], acc[i]);
      } else if constexpr (kWidth == 8) {
        const uint4 v = *reinterpret_cast<const uint4*>(static_cast<const uint16_t*>(a.results) + at);
        const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          acc[2 * i] = fmaf(w, __uint_as_float(words[i] << 16), acc[2 * i]);
          acc[2 * i + 1] = fmaf(w, __uint_as_float(words[i] & 0xffff0000u), acc[2 * i + 1]);
        }
      } else {
        acc[0] =
            fmaf(w, __uint_as_float(static_cast<uint32_t>(static_cast<const uint16_t*>(a.results)[at]) << 16), acc[0]);
      }
    }
    const int64_t at = token * a.columns + column;
    if (a.f32) {
#pragma unroll
      for (int i = 0; i < kWidth; ++i) static_cast<float*>(a.out)[at + i] = acc[i];
    } else if constexpr (kWidth == 8) {
      *reinterpret_cast<uint4*>(static_cast<uint16_t*>(a.out) + at) = {
          ptx::cvt_bf16x2_f32(acc[1], acc[0]), ptx::cvt_bf16x2_f32(acc[3], acc[2]), ptx::cvt_bf16x2_f32(acc[5], acc[4]),
          ptx::cvt_bf16x2_f32(acc[7], acc[6])};
    } else {
      static_cast<uint16_t*>(a.out)[at] = static_cast<uint16_t>(ptx::cvt_bf16x2_f32(0.0f, acc[0]));
    }
  }
}

__global__ void __launch_bounds__(kThreads) combine_kernel(const __grid_constant__ CombineArgs a) {
  __shared__ int present[kMaxTopK];
  __shared__ float weights[kMaxTopK];
  ptx::griddepcontrol_launch_dependents();
  touch_parameters(a);
  ptx::griddepcontrol_wait();
  const int64_t tokens = a.num_tokens != nullptr ? min(static_cast<int64_t>(*a.num_tokens), a.tokens) : a.tokens;
  const int64_t token = blockIdx.x;
  if (token >= tokens) return;
  if (static_cast<int>(threadIdx.x) < a.top_k) {
    const int64_t pair = token * a.top_k + threadIdx.x;
    present[threadIdx.x] = a.pair_row[pair] >= 0;
    weights[threadIdx.x] = a.weights != nullptr ? a.weights[pair] : 1.0f;
  }
  __syncthreads();
  if (a.columns % 8 == 0)
    combine_token<8>(a, token, present, weights);
  else
    combine_token<1>(a, token, present, weights);
}

}  // namespace

void launch_combine(const CombineArgs& args, Stream stream, bool pdl) {
  if (args.tokens == 0) return;
  // Few tokens: spread a row's columns over blocks, so that one wave reads everything at once.
  const int parts = args.tokens >= 256 ? 1 : (args.columns + 8 * kThreads - 1) / (8 * kThreads);
  launch(combine_kernel, dim3(static_cast<unsigned>(args.tokens), static_cast<unsigned>(parts)), kThreads, 0, stream,
         pdl, args);
}

}  // namespace sluice::sm90
