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

// Up to kFewResults results of a token are read for kPieces pieces of columns at once: in a shard of experts a token
// has few, and one read at a time would wait for memory.
constexpr int kFewResults = 2, kPieces = 4;

// The experts of a token that are present, ascending.
struct Present {
  int count;
  int k[kMaxTopK];
  float weight[kMaxTopK];
};

// By all threads of a block.
__device__ inline void find_present(const FinalizeArgs& a, int64_t token, Present& present) {
  __shared__ int here[kMaxTopK];
  const int k = static_cast<int>(threadIdx.x);
  const int64_t pair = token * a.top_k + k;
  if (k < a.top_k) here[k] = a.pair_row == nullptr || a.pair_row[pair] >= 0;
  __syncthreads();
  if (k < a.top_k) {
    int before = 0;
    for (int i = 0; i < k; ++i) before += here[i];
    if (here[k] != 0) {
      present.k[before] = k;
      present.weight[before] = a.weights != nullptr ? a.weights[pair] : 1.0f;
    }
    if (k == a.top_k - 1) present.count = before + here[k];
  }
  __syncthreads();
}

// Rows of bfloat16 that are 16-byte aligned: eight columns per thread and piece.
template <int kPieces, int kBatch>
__device__ __forceinline__ void add_pieces(const FinalizeArgs& a, int64_t token, const Present& present) {
  const int step = static_cast<int>(gridDim.y) * kThreads * 8;
  const uint16_t* results = static_cast<const uint16_t*>(a.results) + token * a.top_k * a.columns;
  uint16_t* out = static_cast<uint16_t*>(a.out) + token * a.columns;
  for (int first = static_cast<int>(blockIdx.y * kThreads + threadIdx.x) * 8; first < a.columns;
       first += kPieces * step) {
    float acc[kPieces][8] = {};
    const auto load = [&](int p, int i) {
      const int column = first + p * step;
      return column < a.columns ? *reinterpret_cast<const uint4*>(results + int64_t{present.k[i]} * a.columns + column)
                                : uint4{};
    };
    add_results<kPieces, kBatch>(
        present.count, load, [&](int i) { return present.weight[i]; }, acc);
#pragma unroll
    for (int p = 0; p < kPieces; ++p)
      if (first + p * step < a.columns)
        *reinterpret_cast<uint4*>(out + first + p * step) = {
            ptx::cvt_bf16x2_f32(acc[p][1], acc[p][0]), ptx::cvt_bf16x2_f32(acc[p][3], acc[p][2]),
            ptx::cvt_bf16x2_f32(acc[p][5], acc[p][4]), ptx::cvt_bf16x2_f32(acc[p][7], acc[p][6])};
  }
}

// Any other rows: float32, eight columns per thread if they are aligned, or one column.
template <int kWidth>
__device__ void add_columns(const FinalizeArgs& a, int64_t token, const Present& present) {
  for (int column = static_cast<int>(blockIdx.y * kThreads + threadIdx.x) * kWidth; column < a.columns;
       column += static_cast<int>(gridDim.y) * kThreads * kWidth) {
    float acc[kWidth] = {};
    for (int i = 0; i < present.count; ++i) {
      const int64_t at = (token * a.top_k + present.k[i]) * a.columns + column;
#pragma unroll
      for (int j = 0; j < kWidth; ++j)
        acc[j] = fmaf(present.weight[i],
                      a.f32 ? static_cast<const float*>(a.results)[at + j]
                            : bf16_to_float(static_cast<const uint16_t*>(a.results)[at + j]),
                      acc[j]);
    }
    const int64_t at = token * a.columns + column;
#pragma unroll
    for (int j = 0; j < kWidth; ++j)
      if (a.f32)
        static_cast<float*>(a.out)[at + j] = acc[j];
      else
        static_cast<uint16_t*>(a.out)[at + j] = static_cast<uint16_t>(ptx::cvt_bf16x2_f32(0.0f, acc[j]));
  }
}

__global__ void __launch_bounds__(kThreads) finalize_kernel(const __grid_constant__ FinalizeArgs a) {
  __shared__ Present present;
  ptx::griddepcontrol_launch_dependents();
  touch_parameters(a);
  ptx::griddepcontrol_wait();
  const int64_t token = blockIdx.x;
  if (token >= real_tokens(a.num_tokens, a.tokens)) return;
  find_present(a, token, present);
  if (a.columns % 8 != 0)
    add_columns<1>(a, token, present);
  else if (a.f32)
    add_columns<8>(a, token, present);
  else if (present.count <= kFewResults)
    add_pieces<kPieces, kFewResults>(a, token, present);
  else
    add_pieces<1, 8>(a, token, present);
}

}  // namespace

void launch_finalize(const FinalizeArgs& args, Stream stream, bool pdl) {
  if (args.tokens == 0) return;
  const int parts = args.tokens > tuning::kSpreadColumnsTokens ? 1 : (args.columns + 8 * kThreads - 1) / (8 * kThreads);
  launch(finalize_kernel, dim3(static_cast<unsigned>(args.tokens), static_cast<unsigned>(parts)), kThreads, 0, stream,
         pdl, args);
}

}  // namespace sluice::sm90
