// SPDX-License-Identifier: Apache-2.0
// Shared memory of the product of few rows, and the part of the work that a block has.
#pragma once

#include "kernels/ptx/st_async.cuh"
#include "kernels/sm90/few_rows/config.h"
#include "kernels/sm90/grouped_gemm/task.cuh"

namespace sluice::sm90 {

// A warp rounds a piece of a stage at a time: as many rows as its lanes hold, eight columns each.
template <class T>
__device__ constexpr int rows_per_piece() {
  return 256 / (T::k_blocks * k_block_columns(T::op));
}
template <class T>
__device__ constexpr int row_pieces(int rows) {
  return (rows + rows_per_piece<T>() - 1) / rows_per_piece<T>();
}

template <class T>
struct FewShared : Shared<T> {
  uint64_t *sums_full, *maxima_full;
  float* maxima;     // [splits][max_n]: of the rows of x, over each part of K
  float* divisors;   // [x_warps][max_n] of rows with a scale of their own, a copy per warp that rounds
  uint8_t* partial;  // [splits][rows of a block / 16][max_n / 8][32 lanes][16]

  __device__ explicit FewShared(uint8_t* raw) : Shared<T>(raw) {
    uint8_t* barriers = reinterpret_cast<uint8_t*>(this->full);
    sums_full = reinterpret_cast<uint64_t*>(barriers + 448);
    maxima_full = sums_full + 1;
    static_assert(8 * (2 * T::stages + 2 * T::queue + 3 * T::params_slots) + 4 * (T::queue + 2) <= 448);
    maxima = reinterpret_cast<float*>(barriers + 512);
    divisors = maxima + kMaxFewRowsSplits * T::max_n;
    partial = this->staging;
  }
  // [max_n] The copy of `divisors` that belongs to this warp, one of those that round rows.
  __device__ float* warp_divisors() const { return divisors + (static_cast<int>(threadIdx.x >> 5) - 9) * T::max_n; }
  // Called by one thread, before the cluster's barrier.
  __device__ void init(int splits, int rows) const {
    ptx::mbarrier_init(sums_full, 1);
    ptx::mbarrier_init(maxima_full, splits > 1 ? 1 : 8);
    for (int i = 0; i < T::stages; ++i) {
      ptx::mbarrier_init(this->full + i, 1 + row_pieces<T>(rows));  // the streaming warp, and each piece of the rows
      ptx::mbarrier_init(this->empty + i, 8 * (T::lanes_read ? 32 : 1));
    }
    ptx::fence_mbarrier_init();
    if (splits == 1) return;
    ptx::mbarrier_arrive_expect_tx(sums_full, T::partial_bytes);
    ptx::mbarrier_arrive_expect_tx(maxima_full, splits * rows * 4);
  }
};

struct Part {
  int rank;         // in the cluster
  int begin, end;   // k-blocks
  int first, step;  // tasks: M-tiles, or parts of them
  int tasks;        // of this block
};
template <class T>
__device__ __forceinline__ Part part_of(const FewRowsArgs& a) {
  const int copies = ceil_div(a.k_blocks, T::k_blocks);
  Part p;
  p.rank = static_cast<int>(blockIdx.x) % a.splits;  // clusters are neighbours along x
  p.begin = copies * p.rank / a.splits * T::k_blocks;
  p.end = min(copies * (p.rank + 1) / a.splits * T::k_blocks, a.k_blocks);
  p.first = static_cast<int>(blockIdx.x) / a.splits;
  p.step = static_cast<int>(gridDim.x) / a.splits;
  p.tasks = p.first < a.m_tiles * a.m_parts ? ceil_div(a.m_tiles * a.m_parts - p.first, p.step) : 0;
  return p;
}

// The largest magnitude of row n, once all parts of K have sent theirs.
template <class T>
__device__ __forceinline__ float row_maximum(const FewShared<T>& smem, int splits, int n) {
  float amax = 0.0f;
  for (int s = 0; s < splits; ++s) amax = fmaxf(amax, smem.maxima[s * T::max_n + n]);
  return amax;
}

}  // namespace sluice::sm90
