// SPDX-License-Identifier: Apache-2.0
#include "base/math.h"
#include "kernels/ptx/sync.cuh"
#include "kernels/sm90/launch.cuh"
#include "kernels/sm90/rope/halves.cuh"
#include "kernels/sm90/rope/rope.h"

namespace sluice::sm90 {

namespace {

constexpr int kThreads = 128, kWarps = kThreads / 32;

__global__ void __launch_bounds__(kThreads) rope_angles_kernel(const __grid_constant__ RopeAnglesArgs a) {
  ptx::griddepcontrol_launch_dependents();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= a.rows * a.pairs) return;
  ptx::griddepcontrol_wait();
  const float angle = __fmul_rn(a.inv_freq[i % a.pairs], static_cast<float>(a.positions[i / a.pairs]));
  float s, c;
  sincosf(angle, &s, &c);
  c = __fmul_rn(c, a.attention_factor), s = __fmul_rn(s, a.attention_factor);
  a.cosine[i] = a.round_bf16 ? rounded<bf16_t>(c) : c;
  a.sine[i] = a.round_bf16 ? rounded<bf16_t>(s) : s;
}

// A warp computes one head of one row. The head goes through shared memory, where both values of a pair can be read
// whatever the layout.
template <class D, int N>
__global__ void __launch_bounds__(kThreads) heads_kernel(const __grid_constant__ HeadsArgs a) {
  extern __shared__ float heads[];
  ptx::griddepcontrol_launch_dependents();
  touch_parameters(a);
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  const int64_t row = blockIdx.x;
  int h = static_cast<int>(blockIdx.y) * kWarps + warp, group = 0;
  while (group < a.num_groups && h >= a.groups[group].heads) h -= a.groups[group++].heads;
  ptx::griddepcontrol_wait();
  if (group == a.num_groups) return;
  const HeadGroup& g = a.groups[group];
  int widest = 0;
  for (int i = 0; i < a.num_groups; ++i) widest = max(widest, a.groups[i].dim);
  float* head = heads + warp * widest;
  D* x = static_cast<D*>(g.x.data) + row * g.x.stride + static_cast<int64_t>(h) * g.dim;

  float sum = 0.0f;
  for (int i = lane * N; i < g.dim; i += 32 * N) {
    float v[N];
    load_elements<N>(x + i, v);
    store_elements<N>(v, head + i);
#pragma unroll
    for (int j = 0; j < N; ++j)
      if (i + j < g.norm_dim) sum = fmaf(v[j], v[j], sum);
  }
  if (g.norm != nullptr) {
    sum = lanes_sum(sum);
    const float factor = __frcp_rn(__fsqrt_rn(sum / static_cast<float>(g.norm_dim) + g.eps));
    __syncwarp();
    for (int i = lane; i < g.norm_dim; i += 32) head[i] = rounded<D>(rounded<D>(head[i] * factor) * g.norm[i]);
  }
  __syncwarp();
  if (g.half > 0) {
    const int step = g.interleaved ? 2 : 1, partner = g.interleaved ? 1 : g.half;
    const float *cosine = a.cosine + row * g.half, *sine = a.sine + row * g.half;
    for (int i = lane; i < g.half; i += 32) {
      float& first = head[g.rotary_first + i * step];
      float& second = head[g.rotary_first + i * step + partner];
      const float c = cosine[i], s = sine[i], p = first, q = second;
      first = __fsub_rn(rounded<D>(__fmul_rn(p, c)), rounded<D>(__fmul_rn(q, s)));
      second = __fadd_rn(rounded<D>(__fmul_rn(q, c)), rounded<D>(__fmul_rn(p, s)));
    }
    __syncwarp();
  }
  const int slot = g.pages != nullptr ? a.kv_slots[row] : -1;
  const int64_t page = slot >= 0 ? page_element(slot, h, g.heads, a.block_size, g.dim) : 0;
  const bool stays = g.pages == nullptr && (g.norm != nullptr || g.half > 0);
  for (int i = lane * N; i < g.dim; i += 32 * N) {
    float v[N];
    load_elements<N>(head + i, v);
    if (stays) store_elements<N>(v, x + i);
    if (slot < 0) continue;
    if (g.e4m3) {
#pragma unroll
      for (int j = 0; j < N; ++j) v[j] = rounded<D>(v[j]);
      store_codes<N>(v, g.scale, static_cast<uint8_t*>(g.pages) + page + i);
    } else {
      store_elements<N>(v, static_cast<D*>(g.pages) + page + i);
    }
  }
}

// Heads of 16 kLanes bfloat16 values whose rotary pairs, if any, are the two halves: kLanes lanes hold a head in
// registers, each eight values of either half. 8192 rows of Qwen3-30B-A3B through shared memory took 154 us, 3.7 times
// their bytes.
template <int kLanes>
__global__ void __launch_bounds__(kThreads) halves_kernel(const __grid_constant__ HeadsArgs a, int heads) {
  constexpr int kHalf = 8 * kLanes, kN = kHalfValues;
  ptx::griddepcontrol_launch_dependents();
  touch_parameters(a);
  const int lane = threadIdx.x % kLanes;
  const int64_t item = static_cast<int64_t>(blockIdx.x) * (kThreads / kLanes) + threadIdx.x / kLanes;
  const int64_t row = item / heads;
  int h = static_cast<int>(item % heads), group = 0;
  while (group < a.num_groups && h >= a.groups[group].heads) h -= a.groups[group++].heads;
  const bool exists = row < a.rows && group < a.num_groups;
  const HeadGroup& g = a.groups[exists ? group : 0];
  ptx::griddepcontrol_wait();
  bf16_t* x = static_cast<bf16_t*>(g.x.data) + row * g.x.stride + static_cast<int64_t>(h) * (2 * kHalf) + kN * lane;
  float p[kN] = {}, q[kN] = {};
  if (exists) {
    load_elements<kN>(x, p);
    load_elements<kN>(x + kHalf, q);
  }
  const float squares = halves_squares<kLanes>(p, q);  // every lane of the warp is still here
  if (!exists) return;
  if (g.norm != nullptr) {
    float first[kN], second[kN];
    load_elements<kN>(g.norm + kN * lane, first);
    load_elements<kN>(g.norm + kHalf + kN * lane, second);
    norm_halves<kLanes>(p, q, squares, g.eps, first, second);
  }
  if (g.half > 0) {
    float c[kN], s[kN];
    load_elements<kN>(a.cosine + row * kHalf + kN * lane, c);
    load_elements<kN>(a.sine + row * kHalf + kN * lane, s);
    rotate_halves(p, q, c, s);
  }
  if (g.pages == nullptr) {
    if (g.norm == nullptr && g.half == 0) return;
  } else {
    const int slot = a.kv_slots[row];
    if (slot < 0) return;
    const int64_t page = page_element(slot, h, g.heads, a.block_size, g.dim) + kN * lane;
    if (g.e4m3) {
      auto* codes = static_cast<uint8_t*>(g.pages) + page;
#pragma unroll
      for (int i = 0; i < kN; ++i) p[i] = rounded<bf16_t>(p[i]), q[i] = rounded<bf16_t>(q[i]);
      store_codes<kN>(p, g.scale, codes);
      store_codes<kN>(q, g.scale, codes + kHalf);
      return;
    }
    x = static_cast<bf16_t*>(g.pages) + page;
  }
  store_elements<kN>(p, x);
  store_elements<kN>(q, x + kHalf);
}

bool aligned_16(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

// 0: the heads are not ones that halves_kernel takes; else the values of each. Shapes and addresses decide, never rows.
int halves_dim(const HeadsArgs& a) {
  const int dim = a.groups[0].dim;
  if (dim != 64 && dim != 128 && dim != 256) return 0;
  for (int i = 0; i < a.num_groups; ++i) {
    const HeadGroup& g = a.groups[i];
    const bool rotary = g.half > 0;
    if (g.dim != dim || g.x.f32 || !rows_aligned(g.x) || !aligned_16(g.pages)) return 0;
    if (g.norm != nullptr && (g.norm_dim != dim || !aligned_16(g.norm))) return 0;
    if (rotary &&
        (2 * g.half != dim || g.rotary_first != 0 || g.interleaved || !aligned_16(a.cosine) || !aligned_16(a.sine)))
      return 0;
  }
  return dim;
}

template <int kLanes>
void launch_halves(const HeadsArgs& a, int heads, Stream stream, bool pdl) {
  const int64_t items = a.rows * heads;
  launch(halves_kernel<kLanes>, static_cast<unsigned>(ceil_div<int64_t>(items, kThreads / kLanes)), kThreads, 0, stream,
         pdl, a, heads);
}

template <class D>
void launch_of(const HeadsArgs& a, Stream stream, bool pdl) {
  int heads = 0, widest = 0;
  bool aligned = true;
  for (int i = 0; i < a.num_groups; ++i) {
    const HeadGroup& g = a.groups[i];
    heads += g.heads;
    widest = g.dim > widest ? g.dim : widest;
    aligned =
        aligned && rows_aligned(g.x) && g.dim % kPerVector<D> == 0 && reinterpret_cast<uintptr_t>(g.pages) % 16 == 0;
  }
  switch (halves_dim(a)) {
    case 64:
      return launch_halves<4>(a, heads, stream, pdl);
    case 128:
      return launch_halves<8>(a, heads, stream, pdl);
    case 256:
      return launch_halves<16>(a, heads, stream, pdl);
    default:
      break;
  }
  const dim3 blocks(static_cast<unsigned>(a.rows), static_cast<unsigned>(ceil_div(heads, kWarps)));
  const int smem = kWarps * widest * 4;
  if (aligned)
    launch(heads_kernel<D, kPerVector<D>>, blocks, kThreads, smem, stream, pdl, a);
  else
    launch(heads_kernel<D, 1>, blocks, kThreads, smem, stream, pdl, a);
}

}  // namespace

void launch_rope_angles(const RopeAnglesArgs& a, Stream stream, bool pdl) {
  const int64_t total = a.rows * a.pairs;
  if (total > 0)
    launch(rope_angles_kernel, static_cast<unsigned>(ceil_div<int64_t>(total, kThreads)), kThreads, 0, stream, pdl, a);
}

void launch_heads(const HeadsArgs& a, Stream stream, bool pdl) {
  if (a.rows == 0) return;
  a.groups[0].x.f32 ? launch_of<float>(a, stream, pdl) : launch_of<bf16_t>(a, stream, pdl);
}

}  // namespace sluice::sm90
