// SPDX-License-Identifier: Apache-2.0
#include "base/bf16.h"
#include "kernels/ptx/bf16x2.cuh"
#include "kernels/ptx/sync.cuh"
#include "kernels/sm90/finalize/add_results.cuh"
#include "kernels/sm90/finalize/finalize.h"
#include "kernels/sm90/launch.cuh"
#include "kernels/sm90/route/route.h"
#include "kernels/sm90/tuning.h"

namespace sluice::sm90 {

namespace {

constexpr int kThreads = 128;

template <int kWidth>
__device__ inline void add_columns(const FinalizeArgs& a, int64_t token, int column, const int* present,
                                   const float* weights, float (&acc)[1][kWidth]) {
  if constexpr (kWidth == 8) {
    if (!a.f32) {
      const uint16_t* from = static_cast<const uint16_t*>(a.results) + token * a.top_k * a.columns + column;
      const auto load = [&](int, int k) {
        return present[k] != 0 ? *reinterpret_cast<const uint4*>(from + int64_t{k} * a.columns) : uint4{};
      };
      return add_results(
          a.top_k, load, [&](int k) { return weights[k]; }, acc);  // the weight of an absent one is 0
    }
  }
  for (int k = 0; k < a.top_k; ++k) {
    if (present[k] == 0) continue;
    const int64_t at = (token * a.top_k + k) * a.columns + column;
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      const float v = a.f32 ? static_cast<const float*>(a.results)[at + i]
                            : bf16_to_float(static_cast<const uint16_t*>(a.results)[at + i]);
      acc[0][i] = fmaf(weights[k], v, acc[0][i]);
    }
  }
}

// A thread adds 8 columns of one token if rows are 16-byte aligned, else 1.
template <int kWidth>
__device__ void finalize_token(const FinalizeArgs& a, int64_t token, const int* present, const float* weights) {
  for (int column = (blockIdx.y * kThreads + threadIdx.x) * kWidth; column < a.columns;
       column += gridDim.y * kThreads * kWidth) {
    float sum[1][kWidth] = {};
    add_columns(a, token, column, present, weights, sum);
    const float(&acc)[kWidth] = sum[0];
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
    const bool here = a.pair_row == nullptr || a.pair_row[pair] >= 0;
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
