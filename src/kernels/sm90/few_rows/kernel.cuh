// SPDX-License-Identifier: Apache-2.0
// y = x W^T with few rows of x: the weights are streamed once, by as many blocks as keep the memory busy. A task is 128
// weight rows; the blocks of a cluster share its K, and each adds the partial sums of a part of the weight rows, in the
// order of K. Or K is not shared, and a task may be 64 or 32 weight rows (m_parts).
// Warps 0 to 7 multiply (two warpgroups of 64 weight rows). Warp 8 streams weights, and starts before the previous
// kernel has finished. The others round or copy rows of x into the stages.
#pragma once

#include "kernels/ptx/copy.cuh"
#include "kernels/ptx/st_async.cuh"
#include "kernels/sm90/few_rows/rows.cuh"
#include "kernels/sm90/few_rows/sums.cuh"
#include "kernels/sm90/launch.cuh"

namespace sluice::sm90 {

template <class T>
__device__ __forceinline__ void stream_few_weights(const FewRowsArgs& a, const FewShared<T>& smem, const Part& part) {
  const uint64_t policy = ptx::createpolicy_evict_first();
  Ring<T> ring;
  const int share = k_block_bytes(T::op) / a.m_parts;
  for (int t = 0; t < part.tasks; ++t) {
    const int task = part.first + t * part.step, m_tile = task / a.m_parts;
    const uint8_t* from =
        a.weights.data + static_cast<int64_t>(m_tile) * a.k_blocks * k_block_bytes(T::op) + task % a.m_parts * share;
    for (int k_block = part.begin; k_block < part.end; k_block += T::k_blocks) {
      const int bytes = min(T::k_blocks, part.end - k_block) * share;
      ptx::mbarrier_wait(smem.empty + ring.stage(), ring.phase() ^ 1u);
      uint64_t* full = smem.full + ring.stage();
      ptx::mbarrier_arrive_expect_tx(full, bytes + (T::block_scaled ? 16 : 0));
      ptx::cp_async_bulk(smem.w(ring.stage()), from + static_cast<int64_t>(k_block) * k_block_bytes(T::op), bytes, full,
                         policy);
      if constexpr (T::block_scaled)
        ptx::cp_async_bulk(
            smem.w_scale(ring.stage()),
            a.weights.block_scale +
                (static_cast<int64_t>(m_tile) * scale_runs(T::op, a.k_blocks) + k_block / T::k_blocks) * 4,
            16, full, policy);
      ring.next();
    }
  }
}

template <class T>
__global__ void __launch_bounds__(T::threads, T::blocks_per_sm) few_rows(const __grid_constant__ FewRowsArgs a) {
  extern __shared__ __align__(1024) uint8_t raw_smem[];  // swizzled stages
  const FewShared<T> smem(raw_smem);
  const int warp = threadIdx.x >> 5, splits = a.splits;
  if (threadIdx.x == 0) smem.init(splits, a.rows);
  __syncthreads();
  ptx::griddepcontrol_launch_dependents();
  if (splits > 1) ptx::cluster_arrive_relaxed();
  const Part part = part_of<T>(a);
  static_assert(T::blocks_per_sm == 2);
  constexpr int kPool = 65536 / T::blocks_per_sm / T::threads / 8 * 8;  // registers per thread at entry
  constexpr int kStreams = T::x_warps > 3 ? 48 : 64;
  constexpr int kMultiplies = kPool + (kPool - kStreams) * (T::threads - 256) / 256;
  if (warp < 8) {
    ptx::setmaxnreg_inc<kMultiplies>();
    touch_parameters(a);
    const SumRows rows = sum_rows(a, part);
    ptx::griddepcontrol_wait();
    if (splits > 1) ptx::cluster_wait();
    multiply_few<T>(a, smem, part, rows);
  } else {
    ptx::setmaxnreg_dec<kStreams>();
    if (warp == 8) {
      if ((threadIdx.x & 31) == 0) stream_few_weights<T>(a, smem, part);
      __syncwarp();
      if (splits > 1) ptx::cluster_wait();
    } else {
      touch_parameters(a);
      ptx::griddepcontrol_wait();
      if (splits > 1) ptx::cluster_wait();
      a.x_f32 ? stream_few_rows<T, float>(a, smem, part) : stream_few_rows<T, bf16_t>(a, smem, part);
      __syncwarp();
    }
  }
}

}  // namespace sluice::sm90
