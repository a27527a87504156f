// SPDX-License-Identifier: Apache-2.0
// A chunk of the chunked scan: its tiles in shared memory, its decays, and what happens to the operands and results of
// its products.
#pragma once

#include "kernels/ptx/bf16x2.cuh"
#include "kernels/ptx/cp_async.cuh"
#include "kernels/ptx/exp2.cuh"
#include "kernels/sm90/elements.cuh"
#include "kernels/sm90/ssm/softplus.cuh"
#include "kernels/sm90/ssm/ssm.h"

namespace sluice::sm90 {

inline constexpr int kScanWarpgroup = 128, kStages = 2;
inline constexpr int kStateTiles = kScanState / 8, kRowTiles = kScanChunk / 8;

// Panels of 64 rows x 64 bfloat16; 16-byte piece c of row r lies at piece c ^ (r % 8).
inline constexpr int kPanel = kScanChunk * 128;
// Where a stage holds C and B, two panels each, and x; and its size.
inline constexpr int kPanelC = 0, kPanelB = 2 * kPanel, kPanelX = 4 * kPanel, kStageBytes = 5 * kPanel;

struct __align__(16) ChunkSteps {
  float2 log[kScanChunk];                                       // L_i as high and low part, to base 2
  float dt[kScanChunk], weight[kScanChunk], entry[kScanChunk];  // dt_j, exp(L_last - L_j) dt_j, exp(L_i)
  float whole;                                                  // exp(L_last)
};
inline constexpr int kScoresHigh = kStages * kStageBytes, kScoresLow = kScoresHigh + kPanel,
                     kSteps = kScoresLow + kPanel;
inline constexpr int kBytes = kSteps + kStages * static_cast<int>(sizeof(ChunkSteps));

// Rows [first, first + count) of the batch.
struct Chunk {
  int first, count;
  bool stores;  // the state after its last row
};

__device__ __forceinline__ void split_pair(float v0, float v1, uint32_t& high, uint32_t& low) {
  high = ptx::cvt_bf16x2_f32(v1, v0);
  low = ptx::cvt_bf16x2_f32(v1 - __uint_as_float(high & 0xffff0000u), v0 - __uint_as_float(high << 16));
}
__device__ __forceinline__ float low_half(uint32_t pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float high_half(uint32_t pair) { return __uint_as_float(pair & 0xffff0000u); }

__device__ __forceinline__ uint32_t piece_at(uint32_t panel, int row, int piece) {
  return panel + static_cast<uint32_t>(row * 128 + ((piece ^ (row & 7)) << 4));
}
// kNoC: without C, which only the rows' results need.
template <bool kNoC>
__device__ __forceinline__ void load_chunk(const StateScanArgs& a, uint32_t stage, const Chunk& chunk, int h) {
  const int inner = a.heads * kScanDim, b_at = inner + h / (a.heads / a.groups) * kScanState;
  const int c_at = b_at + a.groups * kScanState, piece = threadIdx.x % 8;
  const int columns[] = {c_at, c_at + 64, b_at, b_at + 64, h * kScanDim};
#pragma unroll
  for (int i = 0; i < kScanChunk / 16; ++i) {
    const int row = 16 * i + static_cast<int>(threadIdx.x) / 8;
    const bool here = row < chunk.count;
    const bf16_t* from =
        static_cast<const bf16_t*>(a.xbc.data) + (chunk.first + (here ? row : 0)) * a.xbc.stride + 8 * piece;
#pragma unroll
    for (int p = kNoC ? 2 : 0; p < 5; ++p)
      ptx::cp_async_16(piece_at(stage + p * kPanel, row, piece), from + columns[p], here);
  }
}

// Run by one warp: lane l has rows 2 l and 2 l + 1. Rows after the chunk's last one neither decay nor add.
__device__ __forceinline__ void write_steps(ChunkSteps& to, const Chunk& chunk, const float (&raw)[2], float a_h) {
  const int lane = threadIdx.x & 31;
  float dt[2];
  double log[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    dt[i] = 2 * lane + i < chunk.count ? softplus(raw[i]) : 0.0f;
    log[i] = static_cast<double>(dt[i]) * static_cast<double>(a_h) * 1.4426950408889634;
  }
  log[1] += log[0];
  double before = log[1];
#pragma unroll
  for (int d = 1; d < 32; d *= 2) {
    const double other = __shfl_up_sync(0xffffffffu, before, d);
    if (lane >= d) before += other;
  }
  const double last = __shfl_sync(0xffffffffu, before, 31);
  before -= log[1];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const double sum = before + log[i];
    const float high = static_cast<float>(sum);
    to.log[2 * lane + i] = {high, static_cast<float>(sum - static_cast<double>(high))};
    to.dt[2 * lane + i] = dt[i];
    to.weight[2 * lane + i] = ptx::ex2_approx(static_cast<float>(last - sum)) * dt[i];
    to.entry[2 * lane + i] = ptx::ex2_approx(high);
  }
  if (lane == 0) to.whole = ptx::ex2_approx(static_cast<float>(last));
}

// Multiplies g, the scores of rows [row, row + 16), by their decays and steps and writes them to shared memory. Tiles
// above the diagonal are neither written nor read.
__device__ __forceinline__ void write_scores(uint8_t* smem, const float (&g)[kRowTiles][4], const ChunkSteps& steps,
                                             int row) {
  const int lane = threadIdx.x & 31, pairs = row / 16 + 1;
  const int i0 = row + lane / 4;
  const float2 logs[2] = {steps.log[i0], steps.log[i0 + 8]};
#pragma unroll
  for (int n = 0; n < kRowTiles; ++n) {
    if (n / 2 >= pairs) continue;
    const int j = 8 * n + 2 * (lane % 4);
    const float4 log = *reinterpret_cast<const float4*>(&steps.log[j]);
    const float2 dt = *reinterpret_cast<const float2*>(&steps.dt[j]);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int i = i0 + 8 * r;
      const float d0 = ptx::ex2_approx((logs[r].x - log.x) + (logs[r].y - log.y));
      const float d1 = ptx::ex2_approx((logs[r].x - log.z) + (logs[r].y - log.w));
      uint32_t high, low;
      split_pair(j <= i ? g[n][2 * r] * (d0 * dt.x) : 0.0f, j + 1 <= i ? g[n][2 * r + 1] * (d1 * dt.y) : 0.0f, high,
                 low);
      const int at = i * 128 + ((n ^ (i & 7)) << 4) + 4 * (lane % 4);
      *reinterpret_cast<uint32_t*>(smem + kScoresHigh + at) = high;
      *reinterpret_cast<uint32_t*>(smem + kScoresLow + at) = low;
    }
  }
}

// The operand (weight x)^T of the update of the state, columns [16 k, 16 k + 16), as high and low part.
__device__ __forceinline__ void split_weighted(const uint32_t (&x)[4], const ChunkSteps& steps, int k,
                                               uint32_t (&high)[4], uint32_t (&low)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 w = *reinterpret_cast<const float2*>(&steps.weight[16 * k + 8 * (i / 2) + 2 * (threadIdx.x % 4)]);
    split_pair(low_half(x[i]) * w.x, high_half(x[i]) * w.y, high[i], low[i]);
  }
}
// The operand S of S C, columns [16 k, 16 k + 16) of the transposed state, as high and low part.
__device__ __forceinline__ void split_state(const float (&state)[kStateTiles][4], int k, uint32_t (&high)[4],
                                            uint32_t (&low)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i)
    split_pair(state[2 * k + i / 2][2 * (i % 2)], state[2 * k + i / 2][2 * (i % 2) + 1], high[i], low[i]);
}
// Multiplies each row by its exp(L).
__device__ __forceinline__ void scale_rows(const ChunkSteps& steps, float (&y)[kRowTiles][4]) {
#pragma unroll
  for (int n = 0; n < kRowTiles; ++n) {
    const float2 e = *reinterpret_cast<const float2*>(&steps.entry[8 * n + 2 * (threadIdx.x % 4)]);
    y[n][0] *= e.x, y[n][1] *= e.y, y[n][2] *= e.x, y[n][3] *= e.y;
  }
}
__device__ __forceinline__ void scale_state(const ChunkSteps& steps, float (&state)[kStateTiles][4]) {
  const float whole = steps.whole;
#pragma unroll
  for (int n = 0; n < kStateTiles; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) state[n][i] *= whole;
}

// Adds skip * x and stores the results. `column`: the lane's first column of the head.
__device__ __forceinline__ void store_rows(const StateScanArgs& a, const Chunk& chunk, int column, float skip,
                                           const uint32_t (&x)[kScanChunk / 16][4], const float (&y)[kRowTiles][4]) {
  float* to = static_cast<float*>(a.y.data) + chunk.first * a.y.stride + column;
#pragma unroll
  for (int n = 0; n < kRowTiles; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = 8 * n + 2 * static_cast<int>(threadIdx.x % 4) + i % 2;
      const uint32_t pair = x[n / 2][2 * (n % 2) + i / 2];
      if (row < chunk.count)
        to[row * a.y.stride + 8 * (i / 2)] = fmaf(skip, i % 2 == 0 ? low_half(pair) : high_half(pair), y[n][i]);
    }
}

// The chunk that begins with row `first`; `places`: state_out of rows first + lane and first + lane + 32;
// -1 after the end.
__device__ __forceinline__ Chunk chunk_at(int first, int end, const int (&places)[2]) {
  const uint64_t stored = __ballot_sync(0xffffffffu, places[0] >= 0) |
                          static_cast<uint64_t>(__ballot_sync(0xffffffffu, places[1] >= 0)) << 32;
  const int most = min(kScanChunk, end - first), cut = __ffsll(static_cast<int64_t>(stored));
  return {first, cut > 0 ? min(cut, most) : most, cut > 0 && cut <= most};
}

}  // namespace sluice::sm90
