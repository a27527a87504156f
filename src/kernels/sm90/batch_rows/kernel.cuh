// SPDX-License-Identifier: Apache-2.0
// y = x W^T with a batch of rows of x: the weights are streamed once. A task is 128 weight rows by a tile of rows; the
// blocks of a cluster share its K, and each adds the partial sums of a part of the rows, in the order of K. Where K
// is not shared, and of long routers, a task may be 64 or 32 weight rows (m_parts).
// Warps 0 to 7 multiply (two warpgroups of 64 weight rows). Warp 8 streams weights, and starts before the previous
// kernel has finished. Warp 9 streams rows of x.
#pragma once

#include "kernels/ptx/copy.cuh"
#include "kernels/ptx/tensor_copy.cuh"
#include "kernels/sm90/batch_rows/sums.cuh"
#include "kernels/sm90/launch.cuh"

namespace sluice::sm90 {

template <class T>
__device__ __forceinline__ void stream_batch_weights(const BatchRowsArgs& a, const BatchShared<T>& smem,
                                                     const BatchPart& part) {
  // Several tiles of rows read the same weights.
  const uint64_t policy = a.row_tiles > 1 ? ptx::createpolicy_evict_normal() : ptx::createpolicy_evict_first();
  Stage stage;
  const int share = k_block_bytes(T::op) / a.m_parts;
  for (int t = 0; t < part.tasks; ++t) {
    const int task = part.first + t * part.step;
    const uint8_t* from = a.weights.data +
                          static_cast<int64_t>(part.m_tile(a, task)) * a.k_blocks * k_block_bytes(T::op) +
                          part.m_part(a, task) * share;
    for (int k_block = part.begin; k_block < part.end; k_block += T::w_k_blocks) {
      const int bytes = min(T::w_k_blocks, part.end - k_block) * share;
      ptx::mbarrier_wait(smem.w_empty + stage.index, stage.phase ^ 1u);
      uint64_t* full = smem.w_full + stage.index;
      ptx::mbarrier_arrive_expect_tx(full, bytes);
      ptx::cp_async_bulk(smem.w(stage.index), from + static_cast<int64_t>(k_block) * k_block_bytes(T::op), bytes, full,
                         policy);
      stage.next(smem.w_stages);
    }
  }
}

// Run by one thread, or where scales are copied too, by a warp.
template <class T>
__device__ __forceinline__ void stream_batch_rows(const BatchRowsArgs& a, const BatchShared<T>& smem,
                                                  const BatchPart& part) {
  Stage stage;
  for (int t = 0; t < part.tasks; ++t) {
    const int task = part.first + t * part.step, row = part.row_tile(a, task) * T::rows;
    ScaleCopies<T::op, T::rows> scales(a, part.m_tile(a, task), row, part.begin);  // unused but for FP8 block
    for (int k_block = part.begin; k_block < part.end; ++k_block) {
      ptx::mbarrier_wait(smem.x_empty + stage.index, stage.phase ^ 1u);
      uint64_t* full = smem.x_full + stage.index;
      if (!block_scaled(T::op) || (threadIdx.x & 31) == 0) {
        ptx::mbarrier_arrive_expect_tx(full, T::x_stage);
        ptx::cp_async_bulk_tensor(smem.x(stage.index), &a.x, k_block * 128, row, full);
      }
      if constexpr (block_scaled(T::op)) {
        // Read with the last of the k-blocks that share them.
        const int after = k_block + 1;
        if (after == part.end || after % k_blocks_per_scale(T::op) == 0) scales.next(a, smem.x_scales(stage.index));
        ptx::cp_async_arrive(full);
      }
      stage.next(smem.x_stages);
    }
  }
}

template <class T>
__global__ void __launch_bounds__(T::threads, T::blocks_per_sm) batch_rows(const __grid_constant__ BatchRowsArgs a) {
  extern __shared__ __align__(1024) uint8_t raw_smem[];  // swizzled stages
  const BatchShared<T> smem(raw_smem, a.m_parts);
  const int warp = threadIdx.x >> 5;
  const bool one = (threadIdx.x & 31) == 0, clustered = a.parts > 1;
  if (threadIdx.x == 0) smem.init(a.parts);
  __syncthreads();
  ptx::griddepcontrol_launch_dependents();
  if (clustered) ptx::cluster_arrive_relaxed();
  const BatchPart part = batch_part<T>(a);
  if (warp < 8) {
    if constexpr (T::moves_registers) ptx::setmaxnreg_inc<232>();  // from 168 per thread
    touch_parameters(a);
    ptx::griddepcontrol_wait();
    if (clustered) ptx::cluster_wait();
    multiply_batch<T>(a, smem, part);
  } else {
    if constexpr (T::moves_registers) ptx::setmaxnreg_dec<40>();
    if (warp == 8) {
      if (one) stream_batch_weights<T>(a, smem, part);
      __syncwarp();
      if (clustered) ptx::cluster_wait();
    } else {
      if (warp == 9 && one) ptx::prefetch_tensor_map(&a.x);
      ptx::griddepcontrol_wait();
      if (clustered) ptx::cluster_wait();
      if (warp == 9 && (one || block_scaled(T::op))) stream_batch_rows<T>(a, smem, part);
      __syncwarp();
    }
    if (clustered) ptx::cluster_arrive_relaxed();
  }
  // Copies to others read this block's memory until they are there.
  if (clustered) ptx::cluster_wait();
}

}  // namespace sluice::sm90
