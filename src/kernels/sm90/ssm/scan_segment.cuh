// SPDX-License-Identifier: Apache-2.0
// What a block of the chunked scan works on, and the state it begins with and leaves.
#pragma once

#include "base/math.h"
#include "kernels/sm90/ssm/chunk.cuh"

namespace sluice::sm90 {

// A part of a sequence's rows that blocks of their own compute: rows [begin, end) of the batch.
struct ScanSegment {
  int sequence, rows;  // the sequence and the number of its rows
  int begin, end;
  bool first, last;  // of the sequence
};
__device__ __forceinline__ ScanSegment scan_segment(const StateScanArgs& a) {
  const int sequence = static_cast<int>(blockIdx.y);
  const int begin = a.batch.row_begin[sequence], end = a.batch.row_begin[sequence + 1];
  const int rows = round_up(ceil_div(end - begin, a.segments), kScanChunk),
            at = begin + static_cast<int>(blockIdx.z) * rows;
  return {sequence, end - begin, at, min(end, at + rows), blockIdx.z == 0, at + rows >= end};
}

// The block's head and what the rows' steps, decays and results take from it.
struct ScanHead {
  int index;
  float a, dt_bias, skip;
};
__device__ __forceinline__ ScanHead scan_head(const StateScanArgs& a) {
  const int h = static_cast<int>(blockIdx.x);
  return {h, a.a[h], a.dt_bias[h], a.skip[h]};
}

// The first of the warp's 16 columns of the head; the first of this lane's two, which are 8 apart.
__device__ __forceinline__ int warp_column() { return 16 * (static_cast<int>(threadIdx.x) / 32); }
__device__ __forceinline__ int lane_column() { return warp_column() + static_cast<int>(threadIdx.x) % 32 / 4; }
// Where the batch's states hold this lane's value [n][i]: [4 columns apart of the state][of the head], transposed.
__device__ __forceinline__ float* stored_value(const StateScanArgs& a, int place, int n, int i) {
  const int lane = threadIdx.x % 32;
  const int at = (8 * n + 2 * (lane % 4) + i % 2) * kScanDim + lane_column() + 8 * (i / 2);
  return a.batch.states + place * a.batch.state_floats + int64_t{blockIdx.x} * kScanState * kScanDim + at;
}

// Calls f(n, i, at) for each of this lane's values of a state; value [n][i] is `at` floats after the lane's first one
// in a state that lies as in `carried`: lanes side by side.
template <class F>
__device__ __forceinline__ void each_value(F&& f) {
#pragma unroll
  for (int n = 0; n < kStateTiles; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) f(n, i, (4 * n + i) * kScanWarpgroup);
}

// The state before the sequence's first row.
__device__ __forceinline__ void read_state(const StateScanArgs& a, const ScanSegment& segment,
                                           float (&state)[kStateTiles][4]) {
  const int from = a.batch.state_in[segment.sequence];
  each_value([&](int n, int i, int) { state[n][i] = from >= 0 ? *stored_value(a, from, n, i) : 0.0f; });
}
// Stores it to the place that row `row` of the batch names.
__device__ __forceinline__ void store_state(const StateScanArgs& a, int row, const float (&state)[kStateTiles][4]) {
  const int place = a.batch.state_out[row];
  each_value([&](int n, int i, int) { *stored_value(a, place, n, i) = state[n][i]; });
}

__device__ __forceinline__ void clear_state(float (&state)[kStateTiles][4]) {
  each_value([&](int n, int i, int) { state[n][i] = 0.0f; });
}

// What segments leave to each other. carried[0] is the sequence's state before its first row (whose place the state
// after its last row may take), carried[i + 1] what segment i would leave of no state at all; decays[i + 1] is what it
// leaves of the state before it.
__device__ __forceinline__ float* carried_state(const StateScanArgs& a, int segment) {
  const int64_t at = (int64_t{blockIdx.y} * a.segments + segment) * a.heads + blockIdx.x;
  return a.carried + at * (kScanState * kScanDim) + threadIdx.x;
}
__device__ __forceinline__ float* carried_decay(const StateScanArgs& a, int segment) {
  return a.decays + (int64_t{blockIdx.y} * a.segments + segment) * a.heads + blockIdx.x;
}
__device__ __forceinline__ void store_carried(const StateScanArgs& a, int segment,
                                              const float (&state)[kStateTiles][4]) {
  float* to = carried_state(a, segment);
  each_value([&](int n, int i, int at) { to[at] = state[n][i]; });
}
// The state before this block's segment, from those that the segments before it left.
__device__ __forceinline__ void fold_carried(const StateScanArgs& a, float (&state)[kStateTiles][4]) {
  const float* from = carried_state(a, 0);
  each_value([&](int n, int i, int at) { state[n][i] = from[at]; });
  for (int before = 1; before <= static_cast<int>(blockIdx.z); ++before) {
    const float decay = *carried_decay(a, before);
    from = carried_state(a, before);
    each_value([&](int n, int i, int at) { state[n][i] = fmaf(decay, state[n][i], from[at]); });
  }
}

}  // namespace sluice::sm90
