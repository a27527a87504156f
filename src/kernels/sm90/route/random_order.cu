// SPDX-License-Identifier: Apache-2.0
#include "kernels/sm90/route/random_order.h"

#include <algorithm>

#include "base/math.h"
#include "kernels/ptx/sync.cuh"
#include "kernels/sm90/elements.cuh"
#include "kernels/sm90/launch.cuh"
#include "routing/random_order.h"

namespace sluice::sm90 {

namespace {

constexpr int kThreads = 256;

// A block takes a row: every expert counts those before it, four at a time. 64-bit keys took 64 us for 8192 rows of 128
// experts, more than the router's product.
template <class D>
__global__ void __launch_bounds__(kThreads) random_order_kernel(const __grid_constant__ RandomOrderArgs a) {
  extern __shared__ __align__(16) uint32_t keys[];
  ptx::griddepcontrol_launch_dependents();
  ptx::griddepcontrol_wait();
  const int64_t row = blockIdx.x;
  const int padded = round_up(a.experts, 4);
  for (int e = static_cast<int>(threadIdx.x); e < padded; e += static_cast<int>(blockDim.x))
    keys[e] = e < a.experts ? routing::random_order_key(a.seed, a.positions[row], row, e) : 0xffffffffu;
  __syncthreads();
  D* logits = static_cast<D*>(a.logits.data) + row * a.logits.stride;
  for (int e = static_cast<int>(threadIdx.x); e < a.experts; e += static_cast<int>(blockDim.x)) {
    const uint32_t mine = keys[e];
    int place = 0;
#pragma unroll 4
    for (int i = 0; i < padded; i += 4) {
      const uint4 others = *reinterpret_cast<const uint4*>(keys + i);
      place += (others.x < mine) + (others.y < mine) + (others.z < mine) + (others.w < mine);
    }
    logits[e] = from_float<D>(routing::random_order_logit(place));
  }
}

}  // namespace

void launch_random_order(const RandomOrderArgs& a, Stream stream, bool pdl) {
  if (a.rows == 0 || a.experts == 0) return;
  const int threads = std::min(kThreads, static_cast<int>(round_up<int64_t>(a.experts, 32)));
  launch(a.logits.f32 ? random_order_kernel<float> : random_order_kernel<bf16_t>, dim3(static_cast<unsigned>(a.rows)),
         threads, round_up(a.experts, 4) * 4, stream, pdl, a);
}

}  // namespace sluice::sm90
