// SPDX-License-Identifier: Apache-2.0
// The two single-threaded roles of a block: stream weights (and deal tasks), stream rows.
#pragma once

#include "kernels/ptx/copy.cuh"
#include "kernels/sm90/grouped_gemm/early.cuh"

namespace sluice::sm90 {

// Makes `ticket` the i-th task of every block of the cluster; beyond the last: -1.
template <class T>
__device__ inline void deal_task(const Shared<T>& smem, int i, int ticket, int total) {
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

// The first block of a cluster takes tickets for all of its blocks, one ahead of what it streams: more would leave the
// last tasks to few blocks (5 % at 8 to 512 tokens). Tickets come from a counter, so a block that waits for another
// block's rows knows that the other is running. A first task that is known early is the block's own number: blocks
// start in that order.
template <class T, bool kEarly>
__device__ __forceinline__ void stream_weights(const GroupedGemmArgs& args, const Shared<T>& smem, FirstTask first) {
  const int num_tiles = kEarly ? first.num_tiles : args.header->num_tiles;
  const int total = total_tasks<T>(args, num_tiles);
  const uint64_t policy = ptx::createpolicy_evict_first();
  const bool dealer = T::cluster == 1 || ptx::cluster_ctarank() == 0;
  int* counter = &args.header->ticket[args.ticket];
  const int dealt = kEarly ? static_cast<int>(gridDim.x) : 0;
  int ticket = kEarly ? static_cast<int>(blockIdx.x) : dealer ? atomicAdd(counter, 1) : 0;
  bool waits = kEarly;  // for the tables, once the ring is full
  Ring<T> ring;
  for (;; ring.next_task()) {
    if (dealer) {
      deal_task(smem, ring.task(), ticket, total);
    } else {
      ticket = smem.next_task(ring.task());
      smem.release_task(ring.task());
      if (ticket < 0) return;
    }
    if (ticket >= total) return;
    int next = 0;  // its latency hides behind this task
    if (dealer && !waits) next = dealt + atomicAdd(counter, 1);
    const Task t = task_of<T>(args, ticket, num_tiles);
    const Gemm& g = args.gemm[t.which];
    const int expert = waits ? first.expert : args.tiles[t.tile].expert;
    const auto wait = [&]() {
      ptx::griddepcontrol_wait();
      next = dealt + atomicAdd(counter, 1);
      waits = false;
    };
    const int64_t slab_stride = slab_bytes(T::op);
    for (int slab = t.begin; slab < t.end; slab += T::slabs) {
      const int count = min(T::slabs, t.end - slab);
      if (kEarly && waits && slab == t.begin + T::stages * T::slabs) wait();
      ptx::mbarrier_wait(smem.empty + ring.stage(), ring.phase() ^ 1u);
      uint64_t* full = smem.full + ring.stage();
      ptx::mbarrier_arrive_expect_tx(full, T::m_tiles * (count * slab_bytes(T::op) + (T::block_scaled ? 16 : 0)));
#pragma unroll
      for (int m = 0; m < T::m_tiles; ++m) {
        // A missing last row tile is read again from its neighbour; its results are not stored.
        const int row_tile = min(t.unit * T::m_tiles + m, g.row_tiles - 1);
        const int64_t tile = static_cast<int64_t>(expert) * g.row_tiles + row_tile, at = tile * g.slabs + slab;
        ptx::cp_async_bulk(smem.w(ring.stage()) + m * T::slabs * slab_bytes(T::op), g.weights + at * slab_stride,
                           count * slab_bytes(T::op), full, policy);
        if constexpr (T::block_scaled)
          ptx::cp_async_bulk(smem.w_scale(ring.stage()) + m * 4,
                             g.block_scale + (tile * scale_runs(T::op, g.slabs) + slab / T::slabs) * 4, 16, full,
                             policy);
      }
      ring.next();
    }
    if (kEarly && waits) wait();
    ticket = next;
  }
}

// This block's share of a copy that every block of the cluster receives: shares are whole pieces of `unit` bytes, and
// the last is empty where there are fewer pieces than blocks.
template <class T>
__device__ inline void copy_rows(uint8_t* smem, const uint8_t* from, uint32_t bytes, uint32_t unit, uint64_t* full,
                                 uint64_t policy) {
  if constexpr (T::cluster > 1) {
    constexpr uint32_t kBlocks = T::cluster;
    const uint32_t share = round_up(ceil_div(bytes, kBlocks), unit), offset = ptx::cluster_ctarank() * share;
    if (offset >= bytes) return;
    ptx::cp_async_bulk_multicast(smem + offset, from + offset, min(share, bytes - offset), full, (1 << T::cluster) - 1,
                                 policy);
  } else {
    ptx::cp_async_bulk(smem, from, bytes, full, policy);
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
    const Gemm& g = args.gemm[t.which];
    const Tile tile = args.tiles[t.tile];
    if (t.which == 1) {
      wait_for_rows<T>(args, t.tile);
      ptx::fence_proxy_async();
    }
    const uint8_t* x = g.x + static_cast<int64_t>(tile.row_base) * g.slabs * 128;
    const float* scales =
        T::block_scaled ? g.x_block_scale + static_cast<int64_t>(tile.row_base) * scale_runs(T::op, g.slabs) : nullptr;
    for (int slab = t.begin; slab < t.end; slab += T::slabs) {
      const int count = min(T::slabs, t.end - slab);
      ptx::mbarrier_wait(smem.empty + ring.stage(), ring.phase() ^ 1u);
      uint64_t* full = smem.full + ring.stage();
      // Padding rows have no contents, and what they give is not stored. Of one slab they need not be copied.
      const uint32_t bytes = T::slabs == 1 ? tile.count * 128 : count * tile.padded * 128;
      ptx::mbarrier_arrive_expect_tx(full, bytes + (T::block_scaled ? tile.padded * 4 : 0));
      copy_rows<T>(smem.x(ring.stage()), x + static_cast<int64_t>(slab) * tile.padded * 128, bytes, 128, full, policy);
      if constexpr (T::block_scaled)
        copy_rows<T>(reinterpret_cast<uint8_t*>(smem.x_scale(ring.stage())),
                     reinterpret_cast<const uint8_t*>(scales + static_cast<int64_t>(slab / T::slabs) * tile.padded),
                     tile.padded * 4, 16, full, policy);
      ring.next();
    }
  }
}

}  // namespace sluice::sm90
