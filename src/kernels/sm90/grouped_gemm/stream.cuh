// SPDX-License-Identifier: Apache-2.0
// The two roles of a block that take one thread each: streaming weights (and drawing tickets), and streaming rows.
#pragma once

#include "kernels/ptx/copy.cuh"
#include "kernels/ptx/tensor_copy.cuh"
#include "kernels/sm90/grouped_gemm/early_weights.cuh"

namespace sluice::sm90 {

// Makes `ticket` the i-th task of every block of the cluster. A ticket beyond the last task becomes -1.
template <class T>
__device__ inline void assign_task(const Shared<T>& smem, int i, int ticket, int total) {
  const int slot = i % T::queue, task = ticket < total ? ticket : -1;
  ptx::mbarrier_wait(smem.task_empty + slot, ((i / T::queue) & 1) ^ 1);
  if constexpr (T::cluster > 1) {
    for (int rank = 0; rank < T::cluster; ++rank) {
      ptx::st_cluster(smem.tasks + slot, rank, task);
      ptx::mbarrier_arrive_cluster_release(smem.task_full + slot, rank);
    }
  } else {
    smem.tasks[slot] = task;
    ptx::mbarrier_arrive(smem.task_full + slot);
  }
}

// The first block of a cluster takes tickets for all of its blocks, one ahead of what it streams. Taking more ahead
// would leave the last tasks to few blocks (5 % at 8 to 512 tokens). Every ticket comes from a counter, also one that
// is drawn early. So a block that waits for the rows of another block knows that the other is running. The number of a
// block would not do as its first ticket: CUDA promises neither the order in which blocks start nor that all of them
// fit beside other kernels.
template <class T, bool kEarly>
__device__ __forceinline__ void stream_weights(const GroupedGemmArgs& args, const Shared<T>& smem, FirstTask first) {
  const int num_tiles = kEarly ? first.num_tiles : args.header->num_tiles;
  const int total = total_tasks<T>(args, num_tiles);
  const uint64_t policy = ptx::createpolicy_evict_first();
  const bool draws = T::cluster == 1 || ptx::cluster_ctarank() == 0;
  int* counter = &args.header->ticket[args.ticket];
  int ticket = kEarly ? first.ticket : draws ? atomicAdd(counter, 1) : 0;
  bool waits = kEarly;  // for the tables, once the ring is full
  Ring<T> ring;
  for (;; ring.next_task()) {
    if (draws) {
      assign_task(smem, ring.task(), ticket, total);
    } else {
      ticket = smem.next_task(ring.task());
      smem.release_task(ring.task());
      if (ticket < 0) return;
    }
    if (ticket >= total) return;
    int next = 0;  // this task hides its latency
    if (draws && !waits) next = atomicAdd(counter, 1);
    const Task t = task_of<T>(args, ticket, num_tiles);
    const GemmArgs& g = args.gemm[t.which];
    const int expert = waits ? first.expert : args.tiles[t.tile].expert;
    const auto wait = [&]() {
      ptx::griddepcontrol_wait();
      next = atomicAdd(counter, 1);
      waits = false;
    };
    const int64_t k_block_stride = k_block_bytes(T::op);
    for (int k_block = t.begin; k_block < t.end; k_block += T::k_blocks) {
      const int count = min(T::k_blocks, t.end - k_block);
      if (kEarly && waits && k_block == t.begin + T::stages * T::k_blocks) wait();
      ptx::mbarrier_wait(smem.empty + ring.stage(), ring.phase() ^ 1u);
      uint64_t* full = smem.full + ring.stage();
      ptx::mbarrier_arrive_expect_tx(full, T::m_tiles * (count * k_block_bytes(T::op) + (T::block_scaled ? 16 : 0)));
#pragma unroll
      for (int m = 0; m < T::m_tiles; ++m) {
        // A missing last M-tile is read again from its neighbour; its results are not stored.
        const int m_tile = min(t.m_group * T::m_tiles + m, g.m_tiles - 1);
        const int64_t tile = static_cast<int64_t>(expert) * g.m_tiles + m_tile, at = tile * g.k_blocks + k_block;
        ptx::cp_async_bulk(smem.w(ring.stage()) + m * T::k_blocks * k_block_bytes(T::op),
                           g.weights.data + at * k_block_stride, count * k_block_bytes(T::op), full, policy);
        if constexpr (T::block_scaled)
          ptx::cp_async_bulk(smem.w_scale(ring.stage()) + m * 4,
                             g.weights.block_scale + (tile * scale_runs(T::op, g.k_blocks) + k_block / T::k_blocks) * 4,
                             16, full, policy);
      }
      ring.next();
    }
    if (kEarly && waits) wait();
    ticket = next;
  }
}

// The share of this block of a copy that every block of the cluster receives. Shares are whole pieces of `granule`
// bytes. The last share is empty if there are fewer pieces than blocks.
template <class T>
__device__ inline void copy_rows(uint8_t* smem, const uint8_t* from, uint32_t bytes, uint32_t granule, uint64_t* full,
                                 uint64_t policy) {
  if constexpr (T::cluster > 1) {
    constexpr uint32_t kBlocks = T::cluster;
    const uint32_t share = round_up(ceil_div(bytes, kBlocks), granule), offset = ptx::cluster_ctarank() * share;
    if (offset >= bytes) return;
    ptx::cp_async_bulk_multicast(smem + offset, from + offset, min(share, bytes - offset), full, (1 << T::cluster) - 1,
                                 policy);
  } else {
    ptx::cp_async_bulk(smem, from, bytes, full, policy);
  }
}

// The k-block of max_n rows from `row` on, by all blocks of the cluster together. Rows beyond the tile are copied too,
// and their results are not stored.
template <class T>
__device__ inline void copy_rows_in_place(const GroupedGemmArgs& args, uint8_t* smem, int k_block, int row,
                                          uint64_t* full, uint64_t policy) {
  constexpr int kBox = T::max_n / T::cluster;
  if constexpr (T::cluster > 1) {
    const int first = static_cast<int>(ptx::cluster_ctarank()) * kBox;
    ptx::cp_async_bulk_tensor_multicast(smem + first * 128, &args.rows_in_place, k_block * 128, row + first, full,
                                        (1 << T::cluster) - 1, policy);
  } else {
    ptx::cp_async_bulk_tensor(smem, &args.rows_in_place, k_block * 128, row, full, policy);
  }
}

template <class T>
__device__ __forceinline__ void stream_rows(const GroupedGemmArgs& args, const Shared<T>& smem) {
  const int num_tiles = args.header->num_tiles;
  const uint64_t policy = ptx::createpolicy_evict_last();
  Ring<T> ring;
  for (;; ring.next_task()) {
    const int ticket = smem.next_task(ring.task());
    smem.release_task(ring.task());
    if (ticket < 0) return;
    const Task t = task_of<T>(args, ticket, num_tiles);
    const GemmArgs& g = args.gemm[t.which];
    const RowTile tile = args.tiles[t.tile];
    if (t.which == 1) {
      wait_for_rows<T>(args, t.tile);
      ptx::fence_proxy_async();
    }
    const uint8_t* x = g.x.data + static_cast<int64_t>(tile.row_base) * g.k_blocks * 128;
    const float* scales = T::block_scaled
                              ? g.x.block_scale + static_cast<int64_t>(tile.row_base) * scale_runs(T::op, g.k_blocks)
                              : nullptr;
    for (int k_block = t.begin; k_block < t.end; k_block += T::k_blocks) {
      const int count = min(T::k_blocks, t.end - k_block);
      ptx::mbarrier_wait(smem.empty + ring.stage(), ring.phase() ^ 1u);
      uint64_t* full = smem.full + ring.stage();
      if constexpr (T::reads_in_place)
        if (g.x.data == nullptr) {
          ptx::mbarrier_arrive_expect_tx(full, T::max_n * 128);
          copy_rows_in_place<T>(args, smem.x(ring.stage()), k_block, tile.row_base, full, policy);
          ring.next();
          continue;
        }
      // Padding rows have no contents, and their results are not stored. They need not be copied if a stage is one
      // k-block.
      const uint32_t bytes = T::k_blocks == 1 ? tile.count * 128 : count * tile.padded * 128;
      ptx::mbarrier_arrive_expect_tx(full, bytes + (T::block_scaled ? tile.padded * 4 : 0));
      copy_rows<T>(smem.x(ring.stage()), x + static_cast<int64_t>(k_block) * tile.padded * 128, bytes, 128, full,
                   policy);
      if constexpr (T::block_scaled)
        copy_rows<T>(
            reinterpret_cast<uint8_t*>(smem.x_scale(ring.stage())),
            reinterpret_cast<const uint8_t*>(scales + static_cast<int64_t>(k_block / T::k_blocks) * tile.padded),
            tile.padded * 4, 16, full, policy);
      ring.next();
    }
  }
}

}  // namespace sluice::sm90
