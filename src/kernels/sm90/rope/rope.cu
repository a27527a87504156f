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

// Neighbouring pairs of heads of which nothing else changes: a lane has 16 bytes of the rotary part. DeepSeek-V3's
// queries, 128 heads of 192 values with 64 rotary ones: through shared memory 8192 rows took 426 us, and the whole
// heads read and written are 190.
template <class D>
__device__ __forceinline__ void rotate_pairs(const HeadsArgs& a, const HeadGroup& g, int64_t row) {
  constexpr int N = kPerVector<D>;
  const int lanes = 2 * g.half / N;  // of a head
  const int item = static_cast<int>(blockIdx.y * kThreads + threadIdx.x), h = item / lanes, i = item % lanes;
  ptx::griddepcontrol_wait();
  if (h >= g.heads) return;
  D* x = static_cast<D*>(g.x.data) + row * g.x.stride + int64_t{h} * g.dim + g.rotary_first + i * N;
  float v[N], c[N / 2], s[N / 2];
  load_elements<N>(x, v);
  load_elements<N / 2>(a.cosine + row * g.half + i * (N / 2), c);
  load_elements<N / 2>(a.sine + row * g.half + i * (N / 2), s);
#pragma unroll
  for (int j = 0; j < N / 2; ++j) {
    const float p = v[2 * j], q = v[2 * j + 1];
    v[2 * j] = __fsub_rn(rounded<D>(__fmul_rn(p, c[j])), rounded<D>(__fmul_rn(q, s[j])));
    v[2 * j + 1] = __fadd_rn(rounded<D>(__fmul_rn(q, c[j])), rounded<D>(__fmul_rn(p, s[j])));
  }
  store_elements<N>(v, x);
}
bool aligned_16(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

template <class D>
bool takes_pairs(const HeadsArgs& a) {
  constexpr int N = kPerVector<D>;
  const HeadGroup& g = a.groups[0];
  return g.norm == nullptr && g.pages == nullptr && g.half > 0 && g.interleaved && rows_aligned(g.x) &&
         g.dim % N == 0 && g.rotary_first % N == 0 && 2 * g.half % N == 0 && aligned_16(a.cosine) && aligned_16(a.sine);
}

// A warp computes one head of one row. The head goes through shared memory, where both values of a pair can be read
// whatever the layout. The first `pair_blocks` blocks of a row rotate the first group, if takes_pairs().
template <class D, int N>
__global__ void __launch_bounds__(kThreads) heads_kernel(const __grid_constant__ HeadsArgs a, int pair_blocks) {
  extern __shared__ float heads[];
  ptx::griddepcontrol_launch_dependents();
  touch_parameters(a);
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, block = static_cast<int>(blockIdx.y) - pair_blocks;
  const int64_t row = blockIdx.x;
  if (block < 0) return rotate_pairs<D>(a, a.groups[0], row);
  int h = block * kWarps + warp, group = pair_blocks > 0 ? 1 : 0;
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
__global__ void __launch_bounds__(kThreads) halves_kernel(const __grid_constant__ HeadsArgs a) {
  constexpr int kHalf = 8 * kLanes, kN = kHalfValues;
  ptx::griddepcontrol_launch_dependents();
  touch_parameters(a);
  const int lane = threadIdx.x % kLanes;
  const int64_t row = blockIdx.x;
  int h = static_cast<int>(blockIdx.y * kThreads + threadIdx.x) / kLanes, group = 0;
  while (group < a.num_groups && h >= a.groups[group].heads) h -= a.groups[group++].heads;
  const bool exists = group < a.num_groups;
  const HeadGroup& g = a.groups[exists ? group : 0];
  ptx::griddepcontrol_wait();
  bf16_t* x = static_cast<bf16_t*>(g.x.data) + row * g.x.stride + static_cast<int64_t>(h) * (2 * kHalf) + kN * lane;
  float p[kN] = {}, q[kN] = {}, c[kN], s[kN];
  if (exists) {
    load_elements<kN>(x, p);
    load_elements<kN>(x + kHalf, q);
    if (g.half > 0) {  // under way with the head
      load_elements<kN>(a.cosine + row * kHalf + kN * lane, c);
      load_elements<kN>(a.sine + row * kHalf + kN * lane, s);
    }
  }
  const float squares = halves_squares<kLanes>(p, q);  // every lane of the warp is still here
  if (!exists) return;
  if (g.norm != nullptr) {
    float first[kN], second[kN];
    load_elements<kN>(g.norm + kN * lane, first);
    load_elements<kN>(g.norm + kHalf + kN * lane, second);
    norm_halves<kLanes>(p, q, squares, g.eps, first, second);
  }
  if (g.half > 0) rotate_halves(p, q, c, s);
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
  const dim3 blocks(static_cast<unsigned>(a.rows), static_cast<unsigned>(ceil_div(heads * kLanes, kThreads)));
  launch(halves_kernel<kLanes>, blocks, kThreads, 0, stream, pdl, a);
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
  const HeadGroup& first = a.groups[0];
  const bool pairs = takes_pairs<D>(a);
  const int pair_blocks = pairs ? ceil_div(first.heads * (2 * first.half / kPerVector<D>), kThreads) : 0;
  const int others = ceil_div(heads - (pairs ? first.heads : 0), kWarps);
  const dim3 blocks(static_cast<unsigned>(a.rows), static_cast<unsigned>(pair_blocks + others));
  const int smem = kWarps * widest * 4;
  if (aligned)
    launch(heads_kernel<D, kPerVector<D>>, blocks, kThreads, smem, stream, pdl, a, pair_blocks);
  else
    launch(heads_kernel<D, 1>, blocks, kThreads, smem, stream, pdl, a, pair_blocks);
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
