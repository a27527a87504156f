// SPDX-License-Identifier: Apache-2.0
#include "base/math.h"
#include "kernels/ptx/sync.cuh"
#include "kernels/sm90/elements.cuh"
#include "kernels/sm90/launch.cuh"
#include "kernels/sm90/norm/norm.h"

namespace sluice::sm90 {

namespace {

// Elements of one row that a thread holds between the two passes; longer rows are read again.
constexpr int kHeld = 16;

// A block computes one row. How the sum is split depends on the row's length alone.
template <class D, int N, int kThreads>
__global__ void __launch_bounds__(kThreads) rms_norm_kernel(const __grid_constant__ RmsNormArgs a) {
  __shared__ float shared[kThreads / 32];
  constexpr int kPieces = kHeld / N;
  ptx::griddepcontrol_launch_dependents();
  const int64_t row = blockIdx.x, step = int64_t{kThreads} * N, first = int64_t{threadIdx.x} * N;
  D* x = static_cast<D*>(a.x.data) + row * a.x.stride;
  D* y = static_cast<D*>(a.y.data) + row * a.y.stride;
  const D* change = a.change.data == nullptr ? nullptr : static_cast<const D*>(a.change.data) + row * a.change.stride;
  ptx::griddepcontrol_wait();

  float held[kPieces][N];
  float sum = 0.0f;
  const auto take = [&](int64_t column, float(&v)[N]) {
    load_elements<N>(x + column, v);
    if (change != nullptr) {
      float c[N];
      load_elements<N>(change + column, c);
#pragma unroll
      for (int i = 0; i < N; ++i) v[i] = rounded<D>(v[i] + c[i]);
      store_elements<N>(v, x + column);
    }
#pragma unroll
    for (int i = 0; i < N; ++i) sum = fmaf(v[i], v[i], sum);
  };
#pragma unroll
  for (int p = 0; p < kPieces; ++p)
    if (first + p * step < a.cols) take(first + p * step, held[p]);
  for (int64_t column = first + kPieces * step; column < a.cols; column += step) {
    float v[N];
    take(column, v);
  }
  sum = block_sum<kThreads>(sum, shared);
  const float factor = __frcp_rn(__fsqrt_rn(sum / static_cast<float>(a.cols) + a.eps));
  const auto give = [&](int64_t column, float(&v)[N]) {
    float w[N];
    load_elements<N>(a.weight + column, w);
#pragma unroll
    for (int i = 0; i < N; ++i) v[i] = rounded<D>(v[i] * factor) * w[i];
    store_elements<N>(v, y + column);
  };
#pragma unroll
  for (int p = 0; p < kPieces; ++p)
    if (first + p * step < a.cols) give(first + p * step, held[p]);
  for (int64_t column = first + kPieces * step; column < a.cols; column += step) {
    float v[N];
    load_elements<N>(x + column, v);
    give(column, v);
  }
}

constexpr int kGroupThreads = 128;

// A block computes one group of one row. Its values are computed twice rather than held: x and gate stay in the cache.
template <class D, int N>
__global__ void __launch_bounds__(kGroupThreads) gated_norm_kernel(const __grid_constant__ GatedNormArgs a) {
  __shared__ float shared[kGroupThreads / 32];
  ptx::griddepcontrol_launch_dependents();
  const int64_t row = blockIdx.x, size = a.cols / a.groups, begin = blockIdx.y * size;
  const float* x = static_cast<const float*>(a.x.data) + row * a.x.stride + begin;
  const D* gate = static_cast<const D*>(a.gate.data) + row * a.gate.stride + begin;
  D* y = static_cast<D*>(a.y.data) + row * a.y.stride + begin;
  ptx::griddepcontrol_wait();
  const auto gated = [&](int64_t column, float(&v)[N]) {
    float g[N];
    load_elements<N>(x + column, v);
    load_elements<N>(gate + column, g);
#pragma unroll
    for (int i = 0; i < N; ++i) v[i] *= silu(g[i]);
  };
  float sum = 0.0f;
  for (int64_t column = threadIdx.x * N; column < size; column += kGroupThreads * N) {
    float v[N];
    gated(column, v);
#pragma unroll
    for (int i = 0; i < N; ++i) sum = fmaf(v[i], v[i], sum);
  }
  sum = block_sum<kGroupThreads>(sum, shared);
  const float factor = __frcp_rn(__fsqrt_rn(sum / static_cast<float>(size) + a.eps));
  for (int64_t column = threadIdx.x * N; column < size; column += kGroupThreads * N) {
    float v[N], w[N];
    gated(column, v);
    load_elements<N>(a.weight + begin + column, w);
#pragma unroll
    for (int i = 0; i < N; ++i) v[i] = v[i] * factor * w[i];
    store_elements<N>(v, y + column);
  }
}

template <class D, int N>
void launch_of(const RmsNormArgs& a, Stream stream, bool pdl) {
  const auto rows = static_cast<unsigned>(a.rows);
  // As many threads as hold one access each, so that all of a row is under way at once.
  if (a.cols <= 128 * N)
    launch(rms_norm_kernel<D, N, 128>, rows, 128, 0, stream, pdl, a);
  else if (a.cols <= 512 * N)
    launch(rms_norm_kernel<D, N, 256>, rows, 256, 0, stream, pdl, a);
  else
    launch(rms_norm_kernel<D, N, 512>, rows, 512, 0, stream, pdl, a);
}

}  // namespace

void launch_rms_norm(const RmsNormArgs& a, Stream stream, bool pdl) {
  if (a.rows == 0) return;
  const bool aligned = rows_aligned(a.x) && rows_aligned(a.y) && a.cols % 8 == 0 &&
                       reinterpret_cast<uintptr_t>(a.weight) % 16 == 0 &&
                       (a.change.data == nullptr || rows_aligned(a.change));
  if (a.x.f32)
    aligned ? launch_of<float, 4>(a, stream, pdl) : launch_of<float, 1>(a, stream, pdl);
  else
    aligned ? launch_of<bf16_t, 8>(a, stream, pdl) : launch_of<bf16_t, 1>(a, stream, pdl);
}

void launch_gated_group_rms_norm(const GatedNormArgs& a, Stream stream, bool pdl) {
  if (a.rows == 0) return;
  const int64_t size = a.cols / a.groups;
  const dim3 blocks(static_cast<unsigned>(a.rows), static_cast<unsigned>(a.groups));
  const bool aligned = rows_aligned(a.x) && rows_aligned(a.gate) && rows_aligned(a.y) && size % 8 == 0 &&
                       reinterpret_cast<uintptr_t>(a.weight) % 16 == 0;
  const auto run = [&](auto* kernel) { launch(kernel, blocks, kGroupThreads, 0, stream, pdl, a); };
  if (a.gate.f32)
    aligned ? run(gated_norm_kernel<float, 4>) : run(gated_norm_kernel<float, 1>);
  else
    aligned ? run(gated_norm_kernel<bf16_t, 8>) : run(gated_norm_kernel<bf16_t, 1>);
}

}  // namespace sluice::sm90
