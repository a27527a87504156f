// SPDX-License-Identifier: Apache-2.0
#include "kernels/sm90/route/random_logits.h"

#include "base/math.h"
#include "kernels/ptx/sync.cuh"
#include "kernels/sm90/elements.cuh"
#include "kernels/sm90/launch.cuh"
#include "routing/random_logits.h"

namespace sluice::sm90 {

namespace {

constexpr int kThreads = 256;

// A thread makes one logit.
template <class D>
__global__ void __launch_bounds__(kThreads) random_logits_kernel(const __grid_constant__ RandomLogitsArgs a) {
  ptx::griddepcontrol_launch_dependents();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t at = i / a.experts, expert = i % a.experts;
  if (at >= a.layers * a.rows) return;
  const int64_t layer = at / a.rows, row = at % a.rows;
  ptx::griddepcontrol_wait();
  const int32_t position = a.positions[row];
  const float logit = std::is_same_v<D, bf16_t> ? routing::random_logit_bf16(layer, position, row, expert)
                                                : routing::random_logit(layer, position, row, expert);
  static_cast<D*>(a.logits.data)[at * a.logits.stride + expert] = from_float<D>(logit);
}

}  // namespace

void launch_random_logits(const RandomLogitsArgs& a, Stream stream, bool pdl) {
  const int64_t logits = a.layers * a.rows * a.experts;
  if (logits == 0) return;
  launch(a.logits.f32 ? random_logits_kernel<float> : random_logits_kernel<bf16_t>,
         dim3(static_cast<unsigned>(ceil_div<int64_t>(logits, kThreads))), kThreads, 0, stream, pdl, a);
}

}  // namespace sluice::sm90
