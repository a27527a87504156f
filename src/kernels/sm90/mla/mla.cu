// SPDX-License-Identifier: Apache-2.0
#include "kernels/sm90/mla/mla.h"

#include "base/math.h"
#include "kernels/ptx/sync.cuh"
#include "kernels/sm90/elements.cuh"
#include "kernels/sm90/float_linear/float_linear.h"
#include "kernels/sm90/launch.cuh"
#include "kernels/sm90/mla/head_product.h"

namespace sluice::sm90 {

namespace {

constexpr int kThreads = 128, kRows = 8;

// A block computes eight rows of one head, a thread one column of the latent at a time.
template <class Q, class W, class Out>
__global__ void __launch_bounds__(kThreads) absorb_kernel(const __grid_constant__ MlaAbsorbArgs a) {
  __shared__ float q[kMaxNope][kRows];
  ptx::griddepcontrol_launch_dependents();
  const MlaWeights& m = a.weights;
  const int head = static_cast<int>(blockIdx.y);
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kRows;
  const int rows = static_cast<int>(min(int64_t{kRows}, a.rows - first)), query = m.nope + m.rope;
  const W* weight = static_cast<const W*>(m.kv_b) + static_cast<int64_t>(head) * (m.nope + m.value) * m.latent;
  ptx::griddepcontrol_wait();
  const Q* from = static_cast<const Q*>(a.q.data) + first * a.q.stride + static_cast<int64_t>(head) * query;
  Out* out = static_cast<Out*>(a.out.data) + first * a.out.stride + static_cast<int64_t>(head) * (m.latent + m.rope);
  for (int i = threadIdx.x; i < kRows * m.nope; i += kThreads) {
    const int r = i / m.nope, c = i % m.nope;
    q[c][r] = r < rows ? to_float(from[r * a.q.stride + c]) : 0.0f;
  }
  for (int i = threadIdx.x; i < rows * m.rope; i += kThreads) {
    const int r = i / m.rope, c = i % m.rope;
    out[r * a.out.stride + m.latent + c] = from_float<Out>(to_float(from[r * a.q.stride + m.nope + c]));
  }
  __syncthreads();
  for (int c = threadIdx.x; c < m.latent; c += kThreads) {
    float sums[kRows] = {};
#pragma unroll 8
    for (int i = 0; i < m.nope; ++i) {
      const float w = to_float(weight[static_cast<int64_t>(i) * m.latent + c]);
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

template <class Q, class Out>
void launch_of(const MlaAbsorbArgs& a, Stream stream, bool pdl) {
  const dim3 blocks(static_cast<unsigned>(ceil_div<int64_t>(a.rows, kRows)), static_cast<unsigned>(a.weights.heads));
  launch(a.weights.f32 ? absorb_kernel<Q, float, Out> : absorb_kernel<Q, bf16_t, Out>, blocks, kThreads, 0, stream, pdl,
         a);
}

HeadProductArgs head_product(const MlaWeights& m, ConstRowsView x, RowsView y, int64_t rows) {
  HeadProductArgs p{};
  p.x = x.data;
  p.x_stride = x.stride;
  p.weight_head = static_cast<int64_t>(m.nope + m.value) * m.latent;
  p.weight_stride = m.latent;
  p.y = y.data;
  p.y_stride = y.stride;
  p.rows = rows;
  p.heads = m.heads;
  return p;
}

}  // namespace

bool mla_on_tensor_cores(const MlaWeights& m, ConstRowsView in, ConstRowsView out) {
  const bool whole_pieces = m.nope % 8 == 0 && m.rope % 8 == 0 && m.value % 8 == 0 && m.latent % 8 == 0 &&
                            reinterpret_cast<uintptr_t>(m.kv_b) % 16 == 0;
  return whole_pieces && !m.f32 && !in.f32 && !out.f32 && rows_aligned(in) && rows_aligned(out);
}

void launch_mla_absorb(const MlaAbsorbArgs& a, Stream stream, bool pdl) {
  if (a.rows == 0) return;
  const MlaWeights& m = a.weights;
  if (mla_on_tensor_cores(m, a.q, a.out)) {
    HeadProductArgs p = head_product(m, a.q, a.out, a.rows);
    p.x_head = m.nope + m.rope;
    p.x_rows = a.q_rows;
    p.weight = m.kv_b;
    p.weight_by_k = true;
    p.y_head = m.latent + m.rope;
    p.copy_from = m.nope;
    p.copy_to = m.latent;
    p.copied = m.rope;
    p.n = m.latent;
    p.k = m.nope;
    launch_head_product(p, choose_head_tile(a.rows), stream, pdl);
  } else if (!a.out.f32) {
    a.q.f32 ? launch_of<float, bf16_t>(a, stream, pdl) : launch_of<bf16_t, bf16_t>(a, stream, pdl);
  } else {
    a.q.f32 ? launch_of<float, float>(a, stream, pdl) : launch_of<bf16_t, float>(a, stream, pdl);
  }
}

void launch_mla_expand(const MlaExpandArgs& a, Stream stream, bool pdl) {
  const MlaWeights& m = a.weights;
  const int64_t keys = static_cast<int64_t>(m.nope) * m.latent;  // the value rows of each head follow its key rows
  if (mla_on_tensor_cores(m, a.mixed, a.out)) {
    HeadProductArgs p = head_product(m, a.mixed, a.out, a.rows);
    p.x_head = m.latent;
    p.weight = static_cast<const bf16_t*>(m.kv_b) + keys;
    p.y_head = m.value;
    p.y_rows = a.out_rows;
    p.n = m.value;
    p.k = m.latent;
    launch_head_product(p, choose_head_tile(a.rows), stream, pdl);
    return;
  }
  FloatLinearArgs f{};
  f.x = a.mixed;
  f.weight_f32 = m.f32;
  f.weight = static_cast<const char*>(m.kv_b) + keys * (m.f32 ? 4 : 2);
  f.head_stride = static_cast<int64_t>(m.nope + m.value) * m.latent;
  f.y = a.out;
  f.rows = a.rows;
  f.heads = m.heads;
  f.n = m.value;
  f.k = m.latent;
  launch_float_linear(f, stream, pdl);
}

}  // namespace sluice::sm90
