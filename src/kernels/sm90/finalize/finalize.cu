// SPDX-License-Identifier: Apache-2.0
#include "base/bf16.h"
#include "kernels/ptx/bf16x2.cuh"
#include "kernels/ptx/sync.cuh"
#include "kernels/sm90/finalize/finalize.h"
#include "kernels/sm90/launch.cuh"
#include "kernels/sm90/route/route.h"
#include "kernels/sm90/tuning.h"

namespace sluice::sm90 {

namespace {

constexpr int kThreads = 128;

// Adds eight columns of the results of a token's experts. Eight reads are under way at once.
__device__ inline void add_bf16(const FinalizeArgs& a, int64_t token, int column, const int* present,
                                const float* weights, float (&acc)[8]) {
  constexpr int kBatch = 8;
  const uint16_t* from = static_cast<const uint16_t*>(a.results) + token * a.top_k * a.columns + column;
  for (int first = 0; first < a.top_k; first += kBatch) {
    uint4 v[kBatch];
#pragma unroll
    for (int k = 0; k < kBatch; ++k) {
      v[k] = uint4{};
      if (first + k < a.top_k && present[first + k] != 0)
        v[k] = *reinterpret_cast<const uint4*>(from + int64_t{first + k} * a.columns);
    }
#pragma unroll
    for (int k = 0; k < kBatch; ++k) {
      const float w = first + k < a.top_k ? weights[first + k] : 0.0f;  // an absent one adds 0
      const uint32_t words[4] = {v[k].x, v[k].y, v[k].z, v[k].w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        acc[2 * i] = fmaf(w, __uint_as_float(words[i] << 16), acc[2 * i]);
        acc[2 * i + 1] = fmaf(w, __uint_as_float(words[i] & 0xffff0000u), acc[2 * i + 1]);
      }
    }
  }
}

template <int kWidth>
__device__ inline void add_results(const FinalizeArgs& a, int64_t token, int column, const int* present,
                                   const float* weights, float (&acc)[kWidth]) {
  if constexpr (kWidth == 8)
    if (!a.f32) return add_bf16(a, token, column, present, weights, acc);
  for (int k = 0; k < a.top_k; ++k) {
    if (present[k] == 0) continue;
    const int64_t at = (token * a.top_k + k) * a.columns + column;
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      const float v = a.f32 ? static_cast<const float*>(a.results)[at + i]
                            : bf16_to_float(static_cast<const uint16_t*>(a.results)[at + i]);
      acc[i] = fmaf(weights[k], v, acc[i]);
    }
  }
}

// A thread adds 8 columns of one token if rows are 16-byte aligned, else 1.
template <int kWidth>
__device__ void finalize_token(const FinalizeArgs& a, int64_t token, const int* present, const float* weights) {
  for (int column = (blockIdx.y * kThreads + threadIdx.x) * kWidth; column < a.columns;
       column += gridDim.y * kThreads * kWidth) {
    float acc[kWidth] = {};
    add_results(a, token, column, present, weights, acc);
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

__global__ void __launch_bounds__(kThreads) finalize_kernel(const __grid_constant__ FinalizeArgs a) {
  __shared__ int present[kMaxTopK];
  __shared__ float weights[kMaxTopK];
  ptx::griddepcontrol_launch_dependents();
  touch_parameters(a);
  ptx::griddepcontrol_wait();
  const int64_t tokens = real_tokens(a.num_tokens, a.tokens);
  const int64_t token = blockIdx.x;
  if (token >= tokens) return;
  if (static_cast<int>(threadIdx.x) < a.top_k) {
    const int64_t pair = token * a.top_k + threadIdx.x;
    const bool here = a.pair_row[pair] >= 0;
    present[threadIdx.x] = here;
    weights[threadIdx.x] = !here ? 0.0f : a.weights != nullptr ? a.weights[pair] : 1.0f;
  }
  __syncthreads();
  if (a.columns % 8 == 0)
    finalize_token<8>(a, token, present, weights);
  else
    finalize_token<1>(a, token, present, weights);
}

}  // namespace

void launch_finalize(const FinalizeArgs& args, Stream stream, bool pdl) {
  if (args.tokens == 0) return;
  const int parts = args.tokens > tuning::kSpreadColumnsTokens ? 1 : (args.columns + 8 * kThreads - 1) / (8 * kThreads);
  launch(finalize_kernel, dim3(static_cast<unsigned>(args.tokens), static_cast<unsigned>(parts)), kThreads, 0, stream,
         pdl, args);
}

}  // namespace sluice::sm90
