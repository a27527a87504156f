// SPDX-License-Identifier: Apache-2.0
#include "base/math.h"
#include "kernels/ptx/sync.cuh"
#include "kernels/sm90/elements.cuh"
#include "kernels/sm90/launch.cuh"
#include "kernels/sm90/mla/mla.h"

namespace sluice::sm90 {

namespace {

constexpr int kThreads = 128, kRows = 8;
constexpr int kWideLatent = 512, kWideThreads = 256;

// A block computes eight rows of one head, a thread one column of the latent at a time.
template <class Q, class W, class Out>
__global__ void __launch_bounds__(kThreads) absorb_kernel(const __grid_constant__ MlaAbsorbArgs a) {
  __shared__ float q[kMaxNope][kRows];
  ptx::griddepcontrol_launch_dependents();
  const int head = static_cast<int>(blockIdx.y);
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kRows;
  const int rows = static_cast<int>(min(int64_t{kRows}, a.rows - first)), query = a.nope + a.rope;
  const W* weight = static_cast<const W*>(a.kv_b) + static_cast<int64_t>(head) * (a.nope + a.value) * a.latent;
  ptx::griddepcontrol_wait();
  const Q* from = static_cast<const Q*>(a.q.data) + first * a.q.stride + static_cast<int64_t>(head) * query;
  Out* out = static_cast<Out*>(a.out.data) + first * a.out.stride + static_cast<int64_t>(head) * (a.latent + a.rope);
  for (int i = threadIdx.x; i < kRows * a.nope; i += kThreads) {
    const int r = i / a.nope, c = i % a.nope;
    q[c][r] = r < rows ? to_float(from[r * a.q.stride + c]) : 0.0f;
  }
  for (int i = threadIdx.x; i < rows * a.rope; i += kThreads) {
    const int r = i / a.rope, c = i % a.rope;
    out[r * a.out.stride + a.latent + c] = from_float<Out>(to_float(from[r * a.q.stride + a.nope + c]));
  }
  __syncthreads();
  for (int c = threadIdx.x; c < a.latent; c += kThreads) {
    float sums[kRows] = {};
#pragma unroll 8
    for (int i = 0; i < a.nope; ++i) {
      const float w = to_float(weight[static_cast<int64_t>(i) * a.latent + c]);
      float x[kRows];
      load_elements<kRows>(q[i], x);
#pragma unroll
      for (int r = 0; r < kRows; ++r) sums[r] = fmaf(x[r], w, sums[r]);
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r)
      if (r < rows) out[r * a.out.stride + c] = from_float<Out>(sums[r]);
  }
}

// The same for 512 latent values, which a block takes at once: four neighbours a thread, two halves of the keys'
// values.
template <class Q, class Out, int kBlockRows>
__global__ void __launch_bounds__(kWideThreads) absorb_wide_kernel(const __grid_constant__ MlaAbsorbArgs a) {
  constexpr int kColumns = 4;
  __shared__ __align__(16) float q[kMaxNope * kBlockRows];
  __shared__ __align__(16) float upper[kBlockRows][kWideLatent];
  ptx::griddepcontrol_launch_dependents();
  const int head = static_cast<int>(blockIdx.y), half = static_cast<int>(threadIdx.x) / (kWideLatent / kColumns);
  const int column = static_cast<int>(threadIdx.x) % (kWideLatent / kColumns) * kColumns;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kBlockRows;
  const int rows = static_cast<int>(min(int64_t{kBlockRows}, a.rows - first));
  const auto* weight =
      static_cast<const bf16_t*>(a.kv_b) + static_cast<int64_t>(head) * (a.nope + a.value) * kWideLatent;
  ptx::griddepcontrol_wait();
  const Q* from = static_cast<const Q*>(a.q.data) + first * a.q.stride + static_cast<int64_t>(head) * (a.nope + a.rope);
  Out* out = static_cast<Out*>(a.out.data) + first * a.out.stride + static_cast<int64_t>(head) * (kWideLatent + a.rope);
  for (int i = threadIdx.x; i < kBlockRows * a.nope; i += kWideThreads) {
    const int r = i / a.nope, c = i % a.nope;
    q[c * kBlockRows + r] = r < rows ? to_float(from[r * a.q.stride + c]) : 0.0f;
  }
  for (int i = threadIdx.x; i < rows * a.rope; i += kWideThreads) {
    const int r = i / a.rope, c = i % a.rope;
    out[r * a.out.stride + kWideLatent + c] = from_float<Out>(to_float(from[r * a.q.stride + a.nope + c]));
  }
  __syncthreads();
  float sums[kBlockRows][kColumns] = {};
  const int middle = a.nope / 2, end = half == 0 ? middle : a.nope;
#pragma unroll 16
  for (int i = half * middle; i < end; ++i) {
    const uint2 w = *reinterpret_cast<const uint2*>(weight + static_cast<int64_t>(i) * kWideLatent + column);
    const float ws[kColumns] = {__uint_as_float(w.x << 16), __uint_as_float(w.x & 0xffff0000u),
                                __uint_as_float(w.y << 16), __uint_as_float(w.y & 0xffff0000u)};
#pragma unroll
    for (int r = 0; r < kBlockRows; ++r)
#pragma unroll
      for (int c = 0; c < kColumns; ++c) sums[r][c] = fmaf(q[i * kBlockRows + r], ws[c], sums[r][c]);
  }
  if (half == 1)
#pragma unroll
    for (int r = 0; r < kBlockRows; ++r)
#pragma unroll
      for (int c = 0; c < kColumns; ++c) upper[r][column + c] = sums[r][c];
  __syncthreads();
  if (half == 1) return;
#pragma unroll
  for (int r = 0; r < kBlockRows; ++r)
#pragma unroll
    for (int c = 0; c < kColumns; ++c)
      if (r < rows) out[r * a.out.stride + column + c] = from_float<Out>(sums[r][c] + upper[r][column + c]);
}

template <class Q, class Out>
void launch_wide(const MlaAbsorbArgs& a, Stream stream, bool pdl) {
  const auto run = [&](auto* kernel, int rows) {
    launch(kernel, dim3(static_cast<unsigned>(ceil_div<int64_t>(a.rows, rows)), static_cast<unsigned>(a.heads)),
           kWideThreads, 0, stream, pdl, a);
  };
  a.rows == 1 ? run(absorb_wide_kernel<Q, Out, 1>, 1) : run(absorb_wide_kernel<Q, Out, kRows>, kRows);
}

template <class Q, class Out>
void launch_of(const MlaAbsorbArgs& a, Stream stream, bool pdl) {
  const dim3 blocks(static_cast<unsigned>(ceil_div<int64_t>(a.rows, kRows)), static_cast<unsigned>(a.heads));
  if (!a.kv_b_f32 && a.latent == kWideLatent && reinterpret_cast<uintptr_t>(a.kv_b) % 8 == 0)
    launch_wide<Q, Out>(a, stream, pdl);
  else if (a.kv_b_f32)
    launch(absorb_kernel<Q, float, Out>, blocks, kThreads, 0, stream, pdl, a);
  else
    launch(absorb_kernel<Q, bf16_t, Out>, blocks, kThreads, 0, stream, pdl, a);
}

}  // namespace

void launch_mla_absorb(const MlaAbsorbArgs& a, Stream stream, bool pdl) {
  if (a.rows == 0) return;
  if (!a.out.f32)
    a.q.f32 ? launch_of<float, bf16_t>(a, stream, pdl) : launch_of<bf16_t, bf16_t>(a, stream, pdl);
  else
    a.q.f32 ? launch_of<float, float>(a, stream, pdl) : launch_of<bf16_t, float>(a, stream, pdl);
}

}  // namespace sluice::sm90
