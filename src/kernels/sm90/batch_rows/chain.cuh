// SPDX-License-Identifier: Apache-2.0
// y = x W^T with few rows of x and K in one part: every sum is one chain of products, so what a k-block costs besides
// its products is paid as often as K has k-blocks. Here several k-blocks share a stage: one wait, one group of products
// and one release. A task is 64 or 32 weight rows (m_parts) by a tile of rows. Warps 0 to 3 multiply. Warp 4
// streams weights, and starts before the previous kernel has finished. Warp 5 streams rows of x into the same stages.
#pragma once

#include "kernels/ptx/copy.cuh"
#include "kernels/ptx/sync.cuh"
#include "kernels/ptx/tensor_copy.cuh"
#include "kernels/ptx/wgmma.cuh"
#include "kernels/ptx/wgmma_sync.cuh"
#include "kernels/sm90/batch_rows/multiply.cuh"
#include "kernels/sm90/few_rows/store.cuh"
#include "kernels/sm90/launch.cuh"

namespace sluice::sm90 {

// kOp: operand. kRows: rows of x of a tile.
template <WeightOperand kOp, int kRows>
struct ChainTile {
  static_assert(cuts_m_tiles(kOp));
  static constexpr WeightOperand op = kOp;
  static constexpr int rows = kRows, threads = 192;
  static constexpr int x_block = kRows * 128, x_stage = kChainGroup * x_block;  // bytes of a k-block, of a stage
  static constexpr int scale_block = scale_floats(kOp, kRows), scale_stage = kChainGroup * scale_block;  // float32
};

template <class T>
struct ChainShared {
  uint64_t *full, *empty;
  uint8_t *xs, *ws;
  float* scales;
  int w_stage;
  __device__ ChainShared(uint8_t* raw, const BatchRowsArgs& a)
      : full(reinterpret_cast<uint64_t*>(raw)),
        empty(full + kMostChainStages),
        xs(raw + kChainBarrierBytes),
        ws(xs + a.stages * T::x_stage),
        scales(reinterpret_cast<float*>(ws + a.stages * kChainGroup * a.w_share + a.beyond)),
        w_stage(kChainGroup * a.w_share) {}
  // Called by a whole warp.
  __device__ void init(int stages) const {
    for (int i = static_cast<int>(threadIdx.x & 31); i < stages; i += 32) {
      ptx::mbarrier_init(full + i, 1 + kRowsArrivals<T::op>);  // by the warps that stream
      ptx::mbarrier_init(empty + i, 4);                        // by those that multiply
    }
    ptx::fence_mbarrier_init();
  }
};

// Tasks of a block: the tiles of rows of a part of an M-tile, then the next part.
struct ChainTasks {
  int first, step, count;
  __device__ explicit ChainTasks(const BatchRowsArgs& a)
      : first(static_cast<int>(blockIdx.x)),
        step(static_cast<int>(gridDim.x)),
        count(ceil_div(a.m_tiles * a.m_parts * a.row_tiles - first, step)) {}
};

template <class T>
__device__ __forceinline__ void stream_chain_weights(const BatchRowsArgs& a, const ChainShared<T>& smem,
                                                     const ChainTasks& tasks) {
  // Several tiles of rows read the same weights.
  const uint64_t policy = a.row_tiles > 1 ? ptx::createpolicy_evict_normal() : ptx::createpolicy_evict_first();
  Stage stage;
  for (int t = 0; t < tasks.count; ++t) {
    const int task = tasks.first + t * tasks.step;
    const uint8_t* from = a.weights.data +
                          static_cast<int64_t>(BatchPart::m_tile(a, task)) * a.k_blocks * k_block_bytes(T::op) +
                          BatchPart::m_part(a, task) * a.w_share;
    for (int k_block = 0; k_block < a.k_blocks; k_block += kChainGroup) {
      const int blocks = min(kChainGroup, a.k_blocks - k_block);
      ptx::mbarrier_wait(smem.empty + stage.index, stage.phase ^ 1u);
      uint64_t* full = smem.full + stage.index;
      ptx::mbarrier_arrive_expect_tx(full, blocks * a.w_share);
      uint8_t* to = smem.ws + stage.index * smem.w_stage;
      for (int i = 0; i < blocks; ++i, to += a.w_share, from += k_block_bytes(T::op))
        ptx::cp_async_bulk(to, from, a.w_share, full, policy);
      stage.next(a.stages);
    }
  }
}

// Run by one thread, or where scales are copied too, by a warp.
template <class T>
__device__ __forceinline__ void stream_chain_rows(const BatchRowsArgs& a, const ChainShared<T>& smem,
                                                  const ChainTasks& tasks) {
  Stage stage;
  for (int t = 0; t < tasks.count; ++t) {
    const int task = tasks.first + t * tasks.step, row = BatchPart::row_tile(a, task) * T::rows;
    ScaleCopies<T::op, T::rows> scales(a, BatchPart::m_tile(a, task), row, 0);  // unused but for FP8 block
    for (int k_block = 0; k_block < a.k_blocks; k_block += kChainGroup) {
      const int blocks = min(kChainGroup, a.k_blocks - k_block);
      ptx::mbarrier_wait(smem.empty + stage.index, stage.phase ^ 1u);
      uint64_t* full = smem.full + stage.index;
      if (!block_scaled(T::op) || (threadIdx.x & 31) == 0) {
        ptx::mbarrier_arrive_expect_tx(full, blocks * T::x_block);
        uint8_t* to = smem.xs + stage.index * T::x_stage;
        for (int i = 0; i < blocks; ++i)
          ptx::cp_async_bulk_tensor(to + i * T::x_block, &a.x, (k_block + i) * 128, row, full);
      }
      if constexpr (block_scaled(T::op)) {
        float* to = smem.scales + stage.index * T::scale_stage;
        for (int i = 0; i < blocks; ++i) scales.next(a, to + i * T::scale_block);
        ptx::cp_async_arrive(full);
      }
      stage.next(a.stages);
    }
  }
}

// Where the tensor cores find a stage. From a shuffle the compiler knows that all lanes have the same, and keeps the
// descriptors in uniform registers; else it moves four words there before each product.
struct ChainDescs {
  uint32_t w, x;
};
template <class T>
__device__ __forceinline__ ChainDescs chain_descs(const ChainShared<T>& smem, int stage) {
  stage = __shfl_sync(0xffffffffu, stage, 0);
  return {ptx::swizzled_desc_low(ptx::smem_address(smem.ws)) + stage * (smem.w_stage >> 4),
          ptx::swizzled_desc_low(ptx::smem_address(smem.xs)) + stage * (T::x_stage >> 4)};
}

// The products of k-block `i` of a stage.
template <class T>
__device__ __forceinline__ void chain_k_block(float (&acc)[T::rows / 2], const ChainDescs& at, int i, int w_share) {
  const uint32_t w = at.w + i * (w_share >> 4), x = at.x + i * (T::x_block >> 4);
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    if constexpr (is_fp8(T::op))
      ptx::Wgmma<T::rows>::e4m3_ss(acc, ptx::swizzled_desc(w + 2 * k), ptx::swizzled_desc(x + 2 * k), k != 0);
    else
      ptx::Wgmma<T::rows>::bf16_ss(acc, ptx::swizzled_desc(w + 2 * k), ptx::swizzled_desc(x + 2 * k), 1);
  }
}

// A stage's products are in flight while the next one's are issued.
template <class T>
__device__ __forceinline__ void multiply_chain_bf16(float (&acc)[T::rows / 2], const BatchRowsArgs& a,
                                                    const ChainShared<T>& smem, Stage& at) {
  const int stages = a.k_blocks / kChainGroup, rest = a.k_blocks % kChainGroup;
  int last = -1;
#pragma unroll 1
  for (int s = 0; s < stages; ++s) {
    ptx::mbarrier_wait(smem.full + at.index, at.phase);
    const ChainDescs descs = chain_descs(smem, at.index);
    ptx::wgmma_fence();
#pragma unroll
    for (int i = 0; i < kChainGroup; ++i) chain_k_block<T>(acc, descs, i, a.w_share);
    ptx::wgmma_commit();
    ptx::wgmma_wait<1>();
    if (last >= 0) release(smem.empty + last);
    last = at.index;
    at.next(a.stages);
  }
  if (rest > 0) {
    ptx::mbarrier_wait(smem.full + at.index, at.phase);
    const ChainDescs descs = chain_descs(smem, at.index);
    ptx::wgmma_fence();
#pragma unroll 1
    for (int i = 0; i < rest; ++i) chain_k_block<T>(acc, descs, i, a.w_share);
    ptx::wgmma_commit();
  }
  ptx::wgmma_wait<0>();
  if (last >= 0) release(smem.empty + last);
  if (rest > 0) {
    release(smem.empty + at.index);
    at.next(a.stages);
  }
}

// Adds the sums of a k-block, of FP8 block times its scales.
template <class T>
__device__ __forceinline__ void add_chain_sums(float (&acc)[T::rows / 2], const float (&sums)[T::rows / 2],
                                               const float* scales) {
  if constexpr (block_scaled(T::op)) {
    promote_sums<T::rows>(acc, sums, scales, scales[T::rows]);
  } else {
#pragma unroll
    for (int j = 0; j < T::rows / 2; ++j) acc[j] += sums[j];
  }
}

// Sums of 128 of K each, which are added in the order of K. Those of a stage are in flight at once.
template <class T>
__device__ __forceinline__ void multiply_chain_fp8(float (&acc)[T::rows / 2], const BatchRowsArgs& a,
                                                   const ChainShared<T>& smem, Stage& at) {
  const int stages = a.k_blocks / kChainGroup, rest = a.k_blocks % kChainGroup;
  float sums[kChainGroup][T::rows / 2];
#pragma unroll 1
  for (int s = 0; s < stages; ++s) {
    ptx::mbarrier_wait(smem.full + at.index, at.phase);
    const ChainDescs descs = chain_descs(smem, at.index);
    ptx::wgmma_fence();
#pragma unroll
    for (int i = 0; i < kChainGroup; ++i) chain_k_block<T>(sums[i], descs, i, a.w_share);
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
#pragma unroll
    for (int i = 0; i < kChainGroup; ++i)
#pragma unroll
      for (int j = 0; j < T::rows / 2; ++j) ptx::pin(sums[i][j]);
    if (!block_scaled(T::op)) release(smem.empty + at.index);
    const float* scales = smem.scales + at.index * T::scale_stage;
#pragma unroll
    for (int i = 0; i < kChainGroup; ++i) add_chain_sums<T>(acc, sums[i], scales + i * T::scale_block);
    if (block_scaled(T::op)) {
      __syncwarp();
      release(smem.empty + at.index);
    }
    at.next(a.stages);
  }
  if (rest == 0) return;
  ptx::mbarrier_wait(smem.full + at.index, at.phase);
  const ChainDescs descs = chain_descs(smem, at.index);
#pragma unroll 1
  for (int i = 0; i < rest; ++i) {
    ptx::wgmma_fence();
    chain_k_block<T>(sums[0], descs, i, a.w_share);
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
#pragma unroll
    for (int j = 0; j < T::rows / 2; ++j) ptx::pin(sums[0][j]);
    add_chain_sums<T>(acc, sums[0], smem.scales + at.index * T::scale_stage + i * T::scale_block);
  }
  __syncwarp();
  release(smem.empty + at.index);
  at.next(a.stages);
}

// Run by warps 0 to 3: all products and results of the block, which are stored from registers.
template <class T>
__device__ __forceinline__ void multiply_chain(const BatchRowsArgs& a, const ChainShared<T>& smem,
                                               const ChainTasks& tasks) {
  constexpr int kEights = T::rows / 8;
  const int warp = static_cast<int>(threadIdx.x >> 5), lane = static_cast<int>(threadIdx.x & 31);
  const int rows = static_cast<int>(real_tokens(a.num_rows, a.rows)), row_groups = 8 / a.m_parts;
  const bool wide = stores_wide(a);
  const float shared = __ldg(&a.scale->factor);
  Stage at;
#pragma unroll 1
  for (int t = 0; t < tasks.count; ++t) {
    const int task = tasks.first + t * tasks.step, m_tile = BatchPart::m_tile(a, task);
    const int row0 = BatchPart::row_tile(a, task) * T::rows, count = min(T::rows, max(rows - row0, 0));
    SumRows sum_rows;
    sum_rows.row_groups = row_groups;
    sum_rows.row_group = BatchPart::m_part(a, task) * row_groups + warp % row_groups;
    sum_rows.row = 16 * sum_rows.row_group + lane / 4;
    // These loads are under way while the products run.
    const RowParams params = row_params(a, m_tile, sum_rows);
    float2 factor[kEights];
#pragma unroll
    for (int j = 0; j < kEights; ++j) {
      const int row = row0 + 8 * j + 2 * (lane & 3);
      factor[j].x = a.row_factor != nullptr && row < a.rows ? __ldcg(a.row_factor + row) : 1.0f;
      factor[j].y = a.row_factor != nullptr && row + 1 < a.rows ? __ldcg(a.row_factor + row + 1) : 1.0f;
    }
    float acc[T::rows / 2];
#pragma unroll
    for (int i = 0; i < T::rows / 2; ++i) acc[i] = 0.0f;
    // As in the grouped GEMM, two barriers let the compiler keep the ring's position in uniform registers.
    ptx::bar_sync(1, 128);
    if constexpr (is_fp8(T::op))
      multiply_chain_fp8<T>(acc, a, smem, at);
    else
      multiply_chain_bf16<T>(acc, a, smem, at);
    ptx::bar_sync(1, 128);
#pragma unroll
    for (int i = 0; i < T::rows / 2; ++i) ptx::pin(acc[i]);
    if (warp >= row_groups) continue;  // its weight rows follow the task's
    float sum[kEights][4];
#pragma unroll
    for (int j = 0; j < kEights; ++j) {
      factor[j] = {shared * factor[j].x, shared * factor[j].y};
#pragma unroll
      for (int i = 0; i < 4; ++i) sum[j][i] = acc[4 * j + i];
    }
    if (wide) {
      store_wide(a, m_tile, sum_rows, params, row0 / 8, row0 / 8 + kEights, row0 + count, sum, factor);
    } else {
#pragma unroll
      for (int j = 0; j < kEights; ++j)
        store_narrow(a, m_tile, sum_rows, params, row0 / 8 + j, row0 + count, sum[j], factor[j]);
    }
  }
}

template <class T>
__global__ void __launch_bounds__(T::threads, 1) chain_rows(const __grid_constant__ BatchRowsArgs a) {
  extern __shared__ __align__(1024) uint8_t raw_smem[];  // swizzled stages
  const ChainShared<T> smem(raw_smem, a);
  const int warp = static_cast<int>(threadIdx.x >> 5);
  if (warp == 4) smem.init(a.stages);
  __syncthreads();
  ptx::griddepcontrol_launch_dependents();
  const ChainTasks tasks(a);
  const bool one = (threadIdx.x & 31) == 0;
  if (warp < 4) {
    touch_parameters(a);
    ptx::griddepcontrol_wait();
    multiply_chain<T>(a, smem, tasks);
  } else if (warp == 4) {
    if (one) stream_chain_weights<T>(a, smem, tasks);
  } else if (one || block_scaled(T::op)) {
    if (one) ptx::prefetch_tensor_map(&a.x);
    ptx::griddepcontrol_wait();
    stream_chain_rows<T>(a, smem, tasks);
  }
}

}  // namespace sluice::sm90
