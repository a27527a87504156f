// SPDX-License-Identifier: Apache-2.0
#include "kernels/sm90/prepare/dummy.h"

#include <algorithm>

#include "base/math.h"
#include "kernels/sm90/elements.cuh"
#include "kernels/sm90/launch.cuh"

namespace sluice::sm90 {

namespace {

constexpr int kThreads = 256, kMaxBlocks = 132 * 32;

// N neighbouring values by a thread; the size of a matrix is a multiple of N.
template <int N>
__global__ void __launch_bounds__(kThreads) dummy_kernel(const __grid_constant__ DummyArgs a) {
  const int64_t total = a.matrices * a.size, step = static_cast<int64_t>(gridDim.x) * kThreads * N;
  for (int64_t i = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * N; i < total; i += step) {
    const int64_t matrix = i / a.size, from = matrix * a.stride + a.first + (i - matrix * a.size);
    float v[N];
#pragma unroll
    for (int j = 0; j < N; ++j) v[j] = weights::dummy_value(a.range, from + j);
    store_elements<N>(v, a.out + i);
  }
}

}  // namespace

void launch_dummy(const DummyArgs& a, Stream stream) {
  const int64_t total = a.matrices * a.size;
  if (total == 0) return;
  const bool wide = a.size % 8 == 0 && reinterpret_cast<uintptr_t>(a.out) % 16 == 0;
  const auto blocks = static_cast<unsigned>(
      std::min<int64_t>(ceil_div<int64_t>(total, static_cast<int64_t>(kThreads) * (wide ? 8 : 1)), kMaxBlocks));
  launch(wide ? dummy_kernel<8> : dummy_kernel<1>, dim3(blocks), kThreads, 0, stream, false, a);
}

}  // namespace sluice::sm90
