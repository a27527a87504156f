// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "base/math.h"
#include "kernels/ptx/sync.cuh"
#include "kernels/sm90/elements.cuh"
#include "kernels/sm90/elementwise/elementwise.h"
#include "kernels/sm90/launch.cuh"

namespace sluice::sm90 {

namespace {

constexpr int kMaxThreads = 256;

// A thread computes N neighbouring columns, a block a part of one row: no division by the row length.
template <class D, int N, Elementwise kOperation>
__global__ void __launch_bounds__(kMaxThreads) elementwise_kernel(const __grid_constant__ ElementwiseArgs a) {
  ptx::griddepcontrol_launch_dependents();
  const int64_t column = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * N;
  if (column >= a.cols) return;
  ptx::griddepcontrol_wait();
  for (int64_t row = blockIdx.y; row < a.rows; row += gridDim.y) {
    D* x = static_cast<D*>(a.x.data) + row * a.x.stride + column;
    float v[N], other[N];
    load_elements<N>(x, v);
    if constexpr (kOperation != Elementwise::relu_squared)
      load_elements<N>(static_cast<const D*>(a.y.data) + row * a.y.stride + column, other);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if constexpr (kOperation == Elementwise::add) v[i] += other[i];
      if constexpr (kOperation == Elementwise::silu_multiply) v[i] = rounded<D>(silu<D>(v[i])) * other[i];
      // A maximum that keeps NaN, as the tensor operation does.
      if constexpr (kOperation == Elementwise::relu_squared) v[i] = v[i] < 0.0f ? 0.0f : v[i] * v[i];
    }
    store_elements<N>(v, x);
  }
}

template <class From, class To, int N>
__global__ void __launch_bounds__(kMaxThreads) gather_rows_kernel(const __grid_constant__ GatherRowsArgs a) {
  ptx::griddepcontrol_launch_dependents();
  const int64_t column = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * N;
  if (column >= a.cols) return;
  ptx::griddepcontrol_wait();
  for (int64_t row = blockIdx.y; row < a.count; row += gridDim.y) {
    const int64_t from = a.rows != nullptr ? a.rows[row] : row;
    float v[N];
    load_elements<N>(static_cast<const From*>(a.x.data) + from * a.x.stride + column, v);
    store_elements<N>(v, static_cast<To*>(a.y.data) + row * a.y.stride + column);
  }
}

template <class D>
__global__ void __launch_bounds__(kMaxThreads) amax_kernel(const __grid_constant__ AmaxArgs a) {
  ptx::griddepcontrol_launch_dependents();
  ptx::griddepcontrol_wait();
  uint32_t largest = 0;  // of magnitudes, bits are ordered as values are, and NaN is above all
  for (int64_t row = blockIdx.y; row < a.rows; row += gridDim.y) {
    const D* x = static_cast<const D*>(a.x.data) + row * a.x.stride;
    for (int64_t c = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; c < a.cols;
         c += static_cast<int64_t>(gridDim.x) * blockDim.x)
      largest = max(largest, __float_as_uint(to_float(x[c])) & 0x7fffffffu);
  }
  largest = __reduce_max_sync(0xffffffffu, largest);
  if ((threadIdx.x & 31) == 0) atomicMax(a.largest, largest);
}

template <class Args>
void launch_rows(void (*kernel)(Args), const Args& args, int64_t rows, int64_t cols, int per_thread, Stream stream,
                 bool pdl) {
  const int64_t pieces = ceil_div<int64_t>(cols, per_thread);
  const int threads = static_cast<int>(std::min<int64_t>(kMaxThreads, round_up<int64_t>(pieces, 32)));
  const dim3 blocks(static_cast<unsigned>(ceil_div<int64_t>(pieces, threads)),
                    static_cast<unsigned>(std::min<int64_t>(rows, 65535)));
  launch(kernel, blocks, threads, 0, stream, pdl, args);
}

template <class D, int N>
void launch_of(const ElementwiseArgs& a, Stream stream, bool pdl) {
  switch (a.operation) {
    case Elementwise::add:
      return launch_rows(elementwise_kernel<D, N, Elementwise::add>, a, a.rows, a.cols, N, stream, pdl);
    case Elementwise::silu_multiply:
      return launch_rows(elementwise_kernel<D, N, Elementwise::silu_multiply>, a, a.rows, a.cols, N, stream, pdl);
    case Elementwise::relu_squared:
      return launch_rows(elementwise_kernel<D, N, Elementwise::relu_squared>, a, a.rows, a.cols, N, stream, pdl);
  }
}

template <class From, class To>
void launch_gather_of(const GatherRowsArgs& a, Stream stream, bool pdl) {
  if (rows_aligned(a.x) && rows_aligned(a.y) && a.cols % 8 == 0)
    launch_rows(gather_rows_kernel<From, To, 8>, a, a.count, a.cols, 8, stream, pdl);
  else
    launch_rows(gather_rows_kernel<From, To, 1>, a, a.count, a.cols, 1, stream, pdl);
}

}  // namespace

void launch_elementwise(const ElementwiseArgs& a, Stream stream, bool pdl) {
  if (a.rows == 0 || a.cols == 0) return;
  const bool aligned = rows_aligned(a.x) && (a.operation == Elementwise::relu_squared || rows_aligned(a.y));
  if (a.x.f32)
    aligned&& a.cols % 4 == 0 ? launch_of<float, 4>(a, stream, pdl) : launch_of<float, 1>(a, stream, pdl);
  else
    aligned&& a.cols % 8 == 0 ? launch_of<bf16_t, 8>(a, stream, pdl) : launch_of<bf16_t, 1>(a, stream, pdl);
}

void launch_amax(const AmaxArgs& a, Stream stream, bool pdl) {
  if (a.rows == 0 || a.cols == 0) return;
  launch_rows(a.x.f32 ? amax_kernel<float> : amax_kernel<bf16_t>, a, std::min<int64_t>(a.rows, 4096), a.cols, 4, stream,
              pdl);
}

void launch_gather_rows(const GatherRowsArgs& a, Stream stream, bool pdl) {
  if (a.count == 0 || a.cols == 0) return;
  if (a.x.f32)
    a.y.f32 ? launch_gather_of<float, float>(a, stream, pdl) : launch_gather_of<float, bf16_t>(a, stream, pdl);
  else
    a.y.f32 ? launch_gather_of<bf16_t, float>(a, stream, pdl) : launch_gather_of<bf16_t, bf16_t>(a, stream, pdl);
}

}  // namespace sluice::sm90
