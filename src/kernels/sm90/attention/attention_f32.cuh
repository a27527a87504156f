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

// Q, D: types of the queries (and outputs, if bfloat16) and of the pages.
template <class Q, class D>
__global__ void __launch_bounds__(kF32Threads) attention_f32_kernel(const __grid_constant__ AttentionArgs a) {
  extern __shared__ __align__(16) float f32_smem[];
  constexpr int kPairs = kF32Rows / (kF32Threads / 32);  // of a warp
  static_assert(kF32Tile == 32 && kF32Rows * 32 % kF32Threads == 0);
  const int width = a.shape.key_width, value_width = a.shape.value_width, group = a.shape.group();
  const int key_stride = f32_key_stride(width), value_stride = f32_value_stride(value_width);
  float* q = f32_smem;                                              // [16][key_stride]
  float* keys = q + kF32Rows * key_stride;                          // [32][key_stride]
  float* acc = keys + kF32Tile * key_stride;                        // [16][value_stride]
  float* p = acc + kF32Rows * value_stride;                         // [16][32]
  float* scales = p + kF32Rows * kF32Tile;                          // [16]: what acc is multiplied by
  auto* page_rows = reinterpret_cast<int32_t*>(scales + kF32Rows);  // [32]
  float* values = reinterpret_cast<float*>(page_rows + kF32Tile);
  const bool shared_values = a.values == nullptr;
  ptx::griddepcontrol_launch_dependents();
  ptx::griddepcontrol_wait();
  AttentionTask t;
  if (!find_task(a, kF32Rows, t)) return;
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  const float scale = a.scale * 1.4426950408889634f;  // exponents are of 2

  for (int i = threadIdx.x; i < kF32Rows * key_stride; i += kF32Threads) {
    const int pair = i / key_stride, column = i % key_stride;
    float v = 0.0f;
    if (pair < t.pairs && column < width) {
      const int64_t row = t.first_row + (t.first_pair + pair) / group;
      const int head = t.key_head * group + (t.first_pair + pair) % group;
      v = to_float(static_cast<const Q*>(a.q.data)[row * a.q.stride + static_cast<int64_t>(head) * width + column]);
    }
    q[i] = v;
  }
  for (int i = threadIdx.x; i < kF32Rows * value_stride; i += kF32Threads) acc[i] = 0.0f;
  float maximum[kPairs], weights[kPairs];
#pragma unroll
  for (int i = 0; i < kPairs; ++i) maximum[i] = kMinusInfinity, weights[i] = 0.0f;

  for (int first = 0; first < t.end; first += kF32Tile) {
    if (threadIdx.x < kF32Tile) page_rows[threadIdx.x] = page_row(a, t, first + static_cast<int>(threadIdx.x));
    __syncthreads();  // the rows are known, and the last tile is done with
    // A warp loads every fourth row. Rows after the end become zeros, where memory may hold anything.
    for (int j = warp; j < kF32Tile; j += kF32Threads / 32) {
      const int64_t from = page_rows[j];
      const D* row = static_cast<const D*>(a.keys) + from * width;
      for (int c = lane; c < key_stride; c += 32)
        keys[j * key_stride + c] = from >= 0 && c < width ? page_value(row[c]) : 0.0f;
      if (shared_values) continue;
      const D* value_row = static_cast<const D*>(a.values) + from * value_width;
      for (int c = lane; c < value_width; c += 32)
        values[j * value_stride + c] = from >= 0 ? page_value(value_row[c]) : 0.0f;
    }
    __syncthreads();

    float s[kPairs][4] = {};  // four partial sums, of the columns 4i to 4i + 3
    for (int c = 0; c < width; c += 4) {
      const float4 k = *reinterpret_cast<const float4*>(keys + lane * key_stride + c);
#pragma unroll
      for (int i = 0; i < kPairs; ++i) {
        const float4 x = *reinterpret_cast<const float4*>(q + (warp * kPairs + i) * key_stride + c);
        s[i][0] = fmaf(x.x, k.x, s[i][0]);
        s[i][1] = fmaf(x.y, k.y, s[i][1]);
        s[i][2] = fmaf(x.z, k.z, s[i][2]);
        s[i][3] = fmaf(x.w, k.w, s[i][3]);
      }
    }
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const int pair = warp * kPairs + i;
      const bool seen = first + lane < positions_seen(t, pair, group);
      const float score = seen ? (s[i][0] + s[i][1]) + (s[i][2] + s[i][3]) : kMinusInfinity;
      float largest = score;
#pragma unroll
      for (int o = 16; o > 0; o /= 2) largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, o));
      const float both = fmaxf(maximum[i], __fmul_rn(largest, scale)), base = exponent_base(both);
      const float keep = ptx::ex2_approx(__fsub_rn(maximum[i], base));
      const float probability = ptx::ex2_approx(fmaf(score, scale, -base));
      maximum[i] = both;
      weights[i] = fmaf(weights[i], keep, lanes_sum(probability));
      p[pair * kF32Tile + lane] = probability;
      if (lane == 0) scales[pair] = keep;
    }
    __syncthreads();

    const float* from = shared_values ? keys : values;
    const int stride = shared_values ? key_stride : value_stride;
    for (int c = threadIdx.x; c < value_width; c += kF32Threads) {
      float v[kF32Tile];
#pragma unroll
      for (int j = 0; j < kF32Tile; ++j) v[j] = from[j * stride + c];
      for (int pair = 0; pair < t.pairs; ++pair) {
        float sum = acc[pair * value_stride + c] * scales[pair];
#pragma unroll
        for (int j = 0; j < kF32Tile; j += 4) {
          const float4 w = *reinterpret_cast<const float4*>(p + pair * kF32Tile + j);
          sum = fmaf(w.x, v[j], sum);
          sum = fmaf(w.y, v[j + 1], sum);
          sum = fmaf(w.z, v[j + 2], sum);
          sum = fmaf(w.w, v[j + 3], sum);
        }
        acc[pair * value_stride + c] = sum;
      }
    }
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    const int pair = warp * kPairs + i;
    if (pair >= t.pairs) continue;
    const int64_t row = t.first_row + (t.first_pair + pair) / group;
    const int head = t.key_head * group + (t.first_pair + pair) % group;
    const int64_t at = row * a.out.stride + static_cast<int64_t>(head) * value_width;
    for (int c = lane; c < value_width; c += 32) {
      const float v = weighted_mean(acc[pair * value_stride + c], weights[i], a.value_scale);
      if (a.out.f32)
        static_cast<float*>(a.out.data)[at + c] = v;
      else
        static_cast<bf16_t*>(a.out.data)[at + c] = from_float<bf16_t>(v);
    }
  }
}

}  // namespace sluice::sm90
