// SPDX-License-Identifier: Apache-2.0
// Shared memory of the product of a batch of rows, and the part of the work that a block has.
#pragma once

#include "kernels/ptx/cp_async.cuh"
#include "kernels/ptx/st_async.cuh"
#include "kernels/ptx/sync.cuh"
#include "kernels/sm90/batch_rows/config.h"

namespace sluice::sm90 {

// Arrivals on a stage of x: of the thread that begins the copies, and where scales are copied too, of a warp's lanes.
template <WeightOperand op>
inline constexpr int kRowsArrivals = block_scaled(op) ? 1 + 32 : 1;

// Copies of the scales (scale_floats()) of a task's k-blocks, one after the other, by the lanes of a warp: a lane has
// every 32nd row of the tile, and one has the weights' scale. What a k-block costs here is paid between two stages, so
// addresses only advance.
template <WeightOperand op, int kRows>
class ScaleCopies {
 public:
  __device__ __forceinline__ ScaleCopies(const BatchRowsArgs& a, int m_tile, int row0, int k_block) {
    const int lane = static_cast<int>(threadIdx.x & 31), run = k_block / k_blocks_per_scale(op);
    x_ = a.x_scale + static_cast<int64_t>(row0 + lane) * a.x_scale_row + static_cast<int64_t>(run) * a.x_scale_run;
    last_ = x_ + kWhole * (32 * a.x_scale_row);
    rows_ = a.rows - row0 - lane;
    if (lane == kRows % 32)
      last_ = a.weights.block_scale + (static_cast<int64_t>(m_tile) * scale_runs(op, a.k_blocks) + run) * 4;
  }
  __device__ __forceinline__ void next(const BatchRowsArgs& a, float* to) {
    const int lane = static_cast<int>(threadIdx.x & 31);
    to += lane;
#pragma unroll
    for (int i = 0; i < kWhole; ++i) ptx::cp_async_4(to + 32 * i, x_ + i * (32 * a.x_scale_row), 32 * i < rows_);
    const bool of_weights = lane == kRows % 32;
    if (lane <= kRows % 32) ptx::cp_async_4(to + 32 * kWhole, last_, of_weights || 32 * kWhole < rows_);
    x_ += a.x_scale_run;
    last_ += of_weights ? 4 : a.x_scale_run;
  }

 private:
  static constexpr int kWhole = kRows / 32;  // copies in which all lanes have rows
  const float *x_, *last_;                   // last_: of the lane's last copy, in one lane that of the weights' scale
  int rows_;                                 // of the call, from the lane's first one on
};

// A position in a ring of stages.
struct Stage {
  int index = 0;
  uint32_t phase = 0;
  __device__ void next(int stages) {
    if (++index == stages) index = 0, phase ^= 1u;
  }
};

template <class T>
struct BatchShared {
  int x_stages, w_stages, w_stage;  // of the rings, bytes of one of weights
  uint8_t *xs, *ws, *partial;
  float* factors;  // [T::rows] of the rows of x, the static one included
  float* scales;   // of the stages of x
  uint64_t *w_full, *w_empty, *x_full, *x_empty;
  uint64_t* ready;  // all blocks of the cluster have finished with their rings
  uint64_t* sums_full;

  __device__ BatchShared(uint8_t* raw, int m_parts)
      : x_stages(T::x_stages(m_parts)), w_stages(T::w_stages(m_parts)), w_stage(T::w_stage(m_parts)) {
    xs = partial = raw;
    ws = xs + x_stages * T::x_stage;
    factors = reinterpret_cast<float*>(raw + T::ring_bytes);
    w_full = reinterpret_cast<uint64_t*>(factors + T::rows);
    w_empty = w_full + T::most_w_stages;
    x_full = w_empty + T::most_w_stages;
    x_empty = x_full + T::most_x_stages;
    ready = x_empty + T::most_x_stages;
    sums_full = ready + 1;
    static_assert(8 * (2 * T::most_w_stages + 2 * T::most_x_stages + 2) <= 512);
    scales = factors + T::rows + 512 / 4;
  }
  __device__ uint8_t* w(int stage) const { return ws + stage * w_stage; }
  __device__ uint8_t* x(int stage) const { return xs + stage * T::x_stage; }
  __device__ float* x_scales(int stage) const { return scales + stage * T::scale_stage; }

  // Called by one thread, before the cluster's barrier.
  __device__ void init(int parts) const {
    for (int i = 0; i < w_stages; ++i) {
      ptx::mbarrier_init(w_full + i, 1);
      ptx::mbarrier_init(w_empty + i, 8);
    }
    for (int i = 0; i < x_stages; ++i) {
      ptx::mbarrier_init(x_full + i, kRowsArrivals<T::op>);
      ptx::mbarrier_init(x_empty + i, 8);
    }
    ptx::mbarrier_init(ready, parts);
    ptx::mbarrier_init(sums_full, 1);
    ptx::fence_mbarrier_init();
  }
};

struct BatchPart {
  int part;         // of K: the rank in the cluster
  int begin, end;   // k-blocks
  int first, step;  // tasks: the tiles of rows of an M-tile or a part of it, then the next one
  int tasks;        // of this block

  __device__ static int m_tile(const BatchRowsArgs& a, int task) { return task / a.row_tiles / a.m_parts; }
  __device__ static int m_part(const BatchRowsArgs& a, int task) { return task / a.row_tiles % a.m_parts; }
  __device__ static int row_tile(const BatchRowsArgs& a, int task) { return task % a.row_tiles; }
};
template <class T>
__device__ __forceinline__ BatchPart batch_part(const BatchRowsArgs& a) {
  const int copies = ceil_div(a.k_blocks, T::w_k_blocks);
  BatchPart p;
  p.part = static_cast<int>(blockIdx.x) % a.parts;  // clusters are neighbours along x
  p.begin = copies * p.part / a.parts * T::w_k_blocks;
  p.end = min(copies * (p.part + 1) / a.parts * T::w_k_blocks, a.k_blocks);
  p.first = static_cast<int>(blockIdx.x) / a.parts;
  p.step = static_cast<int>(gridDim.x) / a.parts;
  p.tasks = ceil_div(a.m_tiles * a.m_parts * a.row_tiles - p.first, p.step);
  return p;
}

}  // namespace sluice::sm90
