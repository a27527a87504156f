// SPDX-License-Identifier: Apache-2.0
#include "base/math.h"
#include "kernels/ptx/sync.cuh"
#include "kernels/sm90/elements.cuh"
#include "kernels/sm90/float_linear/float_linear.h"
#include "kernels/sm90/launch.cuh"

namespace sluice::sm90 {

namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;

// Four neighbours; zeros from `left` on.
template <class D>
__device__ __forceinline__ void load4(const D* from, int left, float (&v)[4]) {
  if (left >= 4 && reinterpret_cast<uintptr_t>(from) % (4 * sizeof(D)) == 0) {
    if constexpr (sizeof(D) == 4) {
      const float4 w = *reinterpret_cast<const float4*>(from);
      v[0] = w.x, v[1] = w.y, v[2] = w.z, v[3] = w.w;
    } else {
      const uint2 w = *reinterpret_cast<const uint2*>(from);
      v[0] = __uint_as_float(w.x << 16), v[1] = __uint_as_float(w.x & 0xffff0000u);
      v[2] = __uint_as_float(w.y << 16), v[3] = __uint_as_float(w.y & 0xffff0000u);
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) v[i] = i < left ? to_float(from[i]) : 0.0f;
}

// A warp computes kRows x kOutputs results. Each lane takes every 32nd group of four columns. The sum of a result has
// one order, whatever tile it is in.
template <class X, class W, int kRows, int kOutputs>
__global__ void __launch_bounds__(kThreads) float_linear_kernel(const __grid_constant__ FloatLinearArgs a) {
  ptx::griddepcontrol_launch_dependents();
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, head = static_cast<int>(blockIdx.z);
  // Neighbouring blocks have the same rows. In one dimension of the grid, as the others end at 65,535.
  const unsigned groups = ceil_div(a.n, kWarps * kOutputs);
  const int first_output = (static_cast<int>(blockIdx.x % groups) * kWarps + warp) * kOutputs;
  const int64_t first_row = static_cast<int64_t>(blockIdx.x / groups) * kRows;
  ptx::griddepcontrol_wait();
  if (first_output >= a.n) return;
  const X* x[kRows];
  const W* w[kOutputs];
#pragma unroll
  for (int r = 0; r < kRows; ++r)
    x[r] = static_cast<const X*>(a.x.data) + min(first_row + r, a.rows - 1) * a.x.stride +
           static_cast<int64_t>(head) * a.k;
#pragma unroll
  for (int o = 0; o < kOutputs; ++o)
    w[o] = static_cast<const W*>(a.weight) + head * a.head_stride +
           static_cast<int64_t>(min(first_output + o, a.n - 1)) * a.k;
  float sums[kRows][kOutputs] = {};
#pragma unroll 2
  for (int k = 4 * lane; k < a.k; k += 128) {
    float xs[kRows][4], ws[kOutputs][4];
#pragma unroll
    for (int r = 0; r < kRows; ++r) load4(x[r] + k, a.k - k, xs[r]);
#pragma unroll
    for (int o = 0; o < kOutputs; ++o) load4(w[o] + k, a.k - k, ws[o]);
#pragma unroll
    for (int r = 0; r < kRows; ++r)
#pragma unroll
      for (int o = 0; o < kOutputs; ++o)
#pragma unroll
        for (int i = 0; i < 4; ++i) sums[r][o] = fmaf(xs[r][i], ws[o][i], sums[r][o]);
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r)
#pragma unroll
    for (int o = 0; o < kOutputs; ++o) {
      float v = lanes_sum(sums[r][o]);
      const int output = first_output + o;
      if (lane != 0 || first_row + r >= a.rows || output >= a.n) continue;
      if (a.bias != nullptr) v += a.bias[output];
      const int64_t at = (first_row + r) * a.y.stride + static_cast<int64_t>(head) * a.n + output;
      if (a.y.f32)
        static_cast<float*>(a.y.data)[at] = v;
      else
        static_cast<bf16_t*>(a.y.data)[at] = from_float<bf16_t>(v);
    }
}

template <class X, class W>
void launch_of(const FloatLinearArgs& a, Stream stream, bool pdl) {
  const auto run = [&](auto* kernel, int rows, int outputs) {
    const int64_t groups = ceil_div(a.n, kWarps * outputs);
    const dim3 blocks(static_cast<unsigned>(groups * ceil_div<int64_t>(a.rows, rows)), 1,
                      static_cast<unsigned>(a.heads));
    launch(kernel, blocks, kThreads, 0, stream, pdl, a);
  };
  // Few rows: more warps. Many: every value that is read serves four results.
  if (a.rows <= 8)
    run(float_linear_kernel<X, W, 1, 1>, 1, 1);
  else
    run(float_linear_kernel<X, W, 4, 4>, 4, 4);
}

}  // namespace

void launch_float_linear(const FloatLinearArgs& a, Stream stream, bool pdl) {
  if (a.rows == 0) return;
  if (a.x.f32)
    a.weight_f32 ? launch_of<float, float>(a, stream, pdl) : launch_of<float, bf16_t>(a, stream, pdl);
  else
    a.weight_f32 ? launch_of<bf16_t, float>(a, stream, pdl) : launch_of<bf16_t, bf16_t>(a, stream, pdl);
}

}  // namespace sluice::sm90
