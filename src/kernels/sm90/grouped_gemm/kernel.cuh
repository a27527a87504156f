// SPDX-License-Identifier: Apache-2.0
// Grouped GEMM, weights as the M side: tasks of (tile of one expert's rows, 128 * m_tiles weight rows, part of K).
// Warps 0-7 multiply (two warpgroups, 64 rows of every 128 each), warp 8 deals tasks and streams weights, warp 9
// streams rows.
#pragma once

#include "kernels/sm90/grouped_gemm/rounded.cuh"
#include "kernels/sm90/grouped_gemm/stream.cuh"
#include "kernels/sm90/launch.cuh"

namespace sluice::sm90 {

template <class T>
__device__ __forceinline__ void consume(const GroupedGemmArgs& args, const Shared<T>& smem) {
  const Group group;
  float* row_factor = smem.row_factor + group.index * T::max_n;
  int* row_pair = smem.row_pair + group.index * T::max_n;
  Ring<T> ring;
  float acc[T::m_tiles][T::max_n / 2];
  for (;;) {
    const int ticket = smem.next_task(ring.task());
    __syncwarp();
    if (group.lane == 0) smem.release_task(ring.task());
    ring.next_task();
    if (ticket < 0) return;
    int slabs, padded;
    bool gated;
    {
      const Task t = task_of<T>(args, ticket, args.header->num_tiles);
      const Gemm& g = args.gemm[t.which];
      const Tile tile = args.tiles[t.tile];
      slabs = t.end - t.begin, padded = tile.padded, gated = g.gated;
      group.sync();  // the last task's rows are no longer read
      if (group.thread == 0) smem.task[group.index] = t, smem.tile[group.index] = tile;
      for (int n = group.thread; n < T::max_n; n += 128) {
        const int64_t at = static_cast<int64_t>(tile.row_base) + n;
        if (n < tile.count) {
          row_pair[n] = args.row_pair[at];
          row_factor[n] = g.x_scale->factor * (g.x_row_scale != nullptr ? g.x_row_scale[at] : 1.0f);
        }
      }
    }
    multiply_padded<T, 1>(acc, smem, ring, slabs, gated, padded);
    group.sync();
    const Task t = smem.task[group.index];
    const Tile tile = smem.tile[group.index];
    const Gemm& g = args.gemm[t.which];
    if (t.unit >= units_of<T>(g)) continue;
    if (g.splits > 1 && !join_splits<T>(args, t, tile, acc, smem, group)) continue;
    if (g.store == Store::result && !g.out_f32 && g.columns % 8 == 0)
      store_results<T>(g, t, tile, acc, smem, group);
    else if (rounds_in_registers(g))
      g.gated ? store_rounded<T, true>(g, t, tile, acc, smem, group)
              : store_rounded<T, false>(g, t, tile, acc, smem, group);
    else
      store_pieces<T>(g, t, tile, acc, smem, group);
    if (t.which == 0 && args.gemms == 2) {
      // These rows are read by the copy engine, perhaps of another block.
      ptx::fence_proxy_async();
      __threadfence();
      group.sync();
      if (group.thread == 0) ptx::red_add_release(args.ready + t.tile, 1);
    }
  }
}

template <class T>
__global__ void __launch_bounds__(T::threads, T::blocks_per_sm)
    grouped_gemm(const __grid_constant__ GroupedGemmArgs args) {
  extern __shared__ __align__(1024) uint8_t raw_smem[];  // swizzled stages
  const Shared<T> smem(raw_smem);
  const int warp = threadIdx.x >> 5;
  if (threadIdx.x == 0) smem.init_barriers();
  if constexpr (T::cluster > 1)
    ptx::cluster_sync();
  else
    __syncthreads();
  ptx::griddepcontrol_launch_dependents();
  touch_parameters(args);
  ptx::griddepcontrol_wait();
  constexpr int kPool = T::blocks_per_sm == 1 ? 168 : T::blocks_per_sm == 2 ? 80 : 56;  // registers a thread at entry
  constexpr int kProducer = T::blocks_per_sm == 1 ? 56 : T::blocks_per_sm == 2 ? 48 : 40;
  constexpr int kConsumer = (kPool + (kPool - kProducer) / 2) / 8 * 8;
  if (warp >= 8) {
    ptx::setmaxnreg_dec<kProducer>();
    if ((threadIdx.x & 31) == 0) {
      if (warp == 8) stream_weights<T>(args, smem);
      if (warp == 9) stream_rows<T>(args, smem);
    }
    __syncwarp();
  } else {
    ptx::setmaxnreg_inc<kConsumer>();
    // Half a task behind, the second warpgroup multiplies while the first stores, and the other way round.
    if (T::max_n >= 128 && warp >= 4) __nanosleep(1000);
    consume<T>(args, smem);
  }
  // Nobody leaves while another block still copies into its memory or arrives on its barriers.
  if constexpr (T::cluster > 1) ptx::cluster_sync();
}

}  // namespace sluice::sm90
