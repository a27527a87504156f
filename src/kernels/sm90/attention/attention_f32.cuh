// SPDX-License-Identifier: Apache-2.0
// Attention in plain float32 arithmetic, for float32 runs, small heads and latent attention: pages and queries of any
// type, widths of any size that fits in shared memory.
//
// A block takes 16 pairs (row, head) and walks over tiles of 32 positions. A lane computes the scores of one position,
// a warp those of four pairs. A thread computes one column of the output of all pairs at a time.
#pragma once

#include "kernels/ptx/bf16x2.cuh"
#include "kernels/ptx/sync.cuh"
#include "kernels/sm90/attention/fold.cuh"
#include "kernels/sm90/attention/task.cuh"
#include "kernels/sm90/elements.cuh"

namespace sluice::sm90 {

inline constexpr int kF32Threads = 128;
inline constexpr int kF32Pairs = kF32Rows / (kF32Threads / 32);  // of a warp
static_assert(kF32Tile == 32 && kF32Rows * 32 % kF32Threads == 0);

// An element of the pages: float32, bfloat16, or the code of an e4m3 value.
template <class D>
__device__ __forceinline__ float page_value(D v) {
  if constexpr (std::is_same_v<D, uint8_t>) {
    float value, none;
    ptx::cvt_f32x2_f16x2(ptx::cvt_f16x2_e4m3x2(v), value, none);
    return value;
  } else {
    return to_float(v);
  }
}

// What the steps of a block share: sizes, and what it keeps in shared memory, which f32_shared_bytes() counts.
struct F32Block {
  int width, value_width, group;  // of a key, of a value; query heads of a key head
  int key_stride, value_stride;
  float scale;         // of scores; exponents are of 2
  bool shared_values;  // the keys are the values
  float* q;            // [16][key_stride]
  float* keys;         // [32][key_stride]
  float* acc;          // [16][value_stride]: weighted sums of values so far
  float* p;            // [16][32]: weights of the tile's positions
  float* scales;       // [16]: what acc is multiplied by before the tile is added
  int32_t* page_rows;  // [32]
  float* values;       // [32][value_stride], unless they are shared
};
__device__ __forceinline__ F32Block f32_block(const AttentionArgs& a, float* memory) {
  F32Block b;
  b.width = a.shape.key_width, b.value_width = a.shape.value_width, b.group = a.shape.group();
  b.key_stride = f32_key_stride(b.width), b.value_stride = f32_value_stride(b.value_width);
  b.q = memory;
  b.keys = b.q + kF32Rows * b.key_stride;
  b.acc = b.keys + kF32Tile * b.key_stride;
  b.p = b.acc + kF32Rows * b.value_stride;
  b.scales = b.p + kF32Rows * kF32Tile;
  b.page_rows = reinterpret_cast<int32_t*>(b.scales + kF32Rows);
  b.values = reinterpret_cast<float*>(b.page_rows + kF32Tile);
  b.scale = a.scale * 1.4426950408889634f;
  b.shared_values = a.values == nullptr;
  return b;
}

// Online softmax of the warp's pairs: the largest score so far, times the scale of exponents of 2, and the sum of
// weights.
struct F32Softmax {
  float maximum[kF32Pairs], weights[kF32Pairs];
};

// Where a pair's query begins in `rows`, or its result, of `width` elements.
template <class Rows>
__device__ __forceinline__ int64_t pair_at(const AttentionTask& t, int pair, int group, const Rows& rows, int width) {
  const int64_t row = t.first_row + (t.first_pair + pair) / group;
  const int head = t.key_head * group + (t.first_pair + pair) % group;
  return row * rows.stride + static_cast<int64_t>(head) * width;
}

// Pairs after the last one and columns that fill up a row become zeros.
template <class Q>
__device__ __forceinline__ void load_f32_queries(const AttentionArgs& a, const AttentionTask& t, const F32Block& b) {
  for (int i = threadIdx.x; i < kF32Rows * b.key_stride; i += kF32Threads) {
    const int pair = i / b.key_stride, column = i % b.key_stride;
    float v = 0.0f;
    if (pair < t.pairs && column < b.width)
      v = to_float(static_cast<const Q*>(a.q.data)[pair_at(t, pair, b.group, a.q, b.width) + column]);
    b.q[i] = v;
  }
}

__device__ __forceinline__ void clear_sums(const F32Block& b, F32Softmax& softmax) {
  for (int i = threadIdx.x; i < kF32Rows * b.value_stride; i += kF32Threads) b.acc[i] = 0.0f;
#pragma unroll
  for (int i = 0; i < kF32Pairs; ++i) softmax.maximum[i] = kMinusInfinity, softmax.weights[i] = 0.0f;
}

// Keys and values of the tile's positions, whose page rows are known. A warp loads every fourth row. Rows after the end
// become zeros, where memory may hold anything.
template <class D>
__device__ __forceinline__ void load_tile(const AttentionArgs& a, const F32Block& b) {
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  for (int j = warp; j < kF32Tile; j += kF32Threads / 32) {
    const int64_t from = b.page_rows[j];
    const D* row = static_cast<const D*>(a.keys) + from * b.width;
    for (int c = lane; c < b.key_stride; c += 32)
      b.keys[j * b.key_stride + c] = from >= 0 && c < b.width ? page_value(row[c]) : 0.0f;
    if (b.shared_values) continue;
    const D* value_row = static_cast<const D*>(a.values) + from * b.value_width;
    for (int c = lane; c < b.value_width; c += 32)
      b.values[j * b.value_stride + c] = from >= 0 ? page_value(value_row[c]) : 0.0f;
  }
}

// Products of the warp's queries with the key of this lane's position, each as four partial sums: those of the columns
// 4i to 4i + 3.
__device__ __forceinline__ void multiply_keys(const F32Block& b, float (&s)[kF32Pairs][4]) {
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  for (int c = 0; c < b.width; c += 4) {
    const float4 k = *reinterpret_cast<const float4*>(b.keys + lane * b.key_stride + c);
#pragma unroll
    for (int i = 0; i < kF32Pairs; ++i) {
      const float4 x = *reinterpret_cast<const float4*>(b.q + (warp * kF32Pairs + i) * b.key_stride + c);
      s[i][0] = fmaf(x.x, k.x, s[i][0]);
      s[i][1] = fmaf(x.y, k.y, s[i][1]);
      s[i][2] = fmaf(x.z, k.z, s[i][2]);
      s[i][3] = fmaf(x.w, k.w, s[i][3]);
    }
  }
}

// Turns the scores of the tile that begins with position `first` into weights, relative to the largest score so far.
__device__ __forceinline__ void weigh_tile(const AttentionTask& t, const F32Block& b, int first,
                                           const float (&s)[kF32Pairs][4], F32Softmax& softmax) {
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
#pragma unroll
  for (int i = 0; i < kF32Pairs; ++i) {
    const int pair = warp * kF32Pairs + i;
    const bool seen = first + lane < positions_seen(t, pair, b.group);
    const float score = seen ? (s[i][0] + s[i][1]) + (s[i][2] + s[i][3]) : kMinusInfinity;
    float largest = score;
#pragma unroll
    for (int o = 16; o > 0; o /= 2) largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, o));
    const float both = fmaxf(softmax.maximum[i], __fmul_rn(largest, b.scale)), base = exponent_base(both);
    const float keep = ptx::ex2_approx(__fsub_rn(softmax.maximum[i], base));
    const float probability = ptx::ex2_approx(fmaf(score, b.scale, -base));
    softmax.maximum[i] = both;
    softmax.weights[i] = fmaf(softmax.weights[i], keep, lanes_sum(probability));
    b.p[pair * kF32Tile + lane] = probability;
    if (lane == 0) b.scales[pair] = keep;
  }
}

// acc = scales acc + p values.
__device__ __forceinline__ void add_values(const AttentionTask& t, const F32Block& b) {
  const float* from = b.shared_values ? b.keys : b.values;
  const int stride = b.shared_values ? b.key_stride : b.value_stride;
  for (int c = threadIdx.x; c < b.value_width; c += kF32Threads) {
    float v[kF32Tile];
#pragma unroll
    for (int j = 0; j < kF32Tile; ++j) v[j] = from[j * stride + c];
    for (int pair = 0; pair < t.pairs; ++pair) {
      float sum = b.acc[pair * b.value_stride + c] * b.scales[pair];
#pragma unroll
      for (int j = 0; j < kF32Tile; j += 4) {
        const float4 w = *reinterpret_cast<const float4*>(b.p + pair * kF32Tile + j);
        sum = fmaf(w.x, v[j], sum);
        sum = fmaf(w.y, v[j + 1], sum);
        sum = fmaf(w.z, v[j + 2], sum);
        sum = fmaf(w.w, v[j + 3], sum);
      }
      b.acc[pair * b.value_stride + c] = sum;
    }
  }
}

// A warp stores the results of the pairs whose sums of weights it has.
__device__ __forceinline__ void store_results(const AttentionArgs& a, const AttentionTask& t, const F32Block& b,
                                              const F32Softmax& softmax) {
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
#pragma unroll
  for (int i = 0; i < kF32Pairs; ++i) {
    const int pair = warp * kF32Pairs + i;
    if (pair >= t.pairs) continue;
    const int64_t at = pair_at(t, pair, b.group, a.out, b.value_width);
    for (int c = lane; c < b.value_width; c += 32) {
      const float v = weighted_mean(b.acc[pair * b.value_stride + c], softmax.weights[i], a.value_scale);
      if (a.out.f32)
        static_cast<float*>(a.out.data)[at + c] = v;
      else
        static_cast<bf16_t*>(a.out.data)[at + c] = from_float<bf16_t>(v);
    }
  }
}

// Q, D: types of the queries (and outputs, if bfloat16) and of the pages.
template <class Q, class D>
__global__ void __launch_bounds__(kF32Threads) attention_f32_kernel(const __grid_constant__ AttentionArgs a) {
  extern __shared__ __align__(16) float f32_smem[];
  const F32Block b = f32_block(a, f32_smem);
  ptx::griddepcontrol_launch_dependents();
  ptx::griddepcontrol_wait();
  AttentionTask t;
  if (!find_task(a, kF32Rows, t)) return;
  load_f32_queries<Q>(a, t, b);
  F32Softmax softmax;
  clear_sums(b, softmax);
  for (int first = 0; first < t.end; first += kF32Tile) {
    if (threadIdx.x < kF32Tile) b.page_rows[threadIdx.x] = page_row(a, t, first + static_cast<int>(threadIdx.x));
    __syncthreads();  // the rows are known, and the last tile is done with
    load_tile<D>(a, b);
    __syncthreads();
    float s[kF32Pairs][4] = {};
    multiply_keys(b, s);
    weigh_tile(t, b, first, s, softmax);
    __syncthreads();
    add_values(t, b);
  }
  __syncthreads();
  store_results(a, t, b, softmax);
}

}  // namespace sluice::sm90
