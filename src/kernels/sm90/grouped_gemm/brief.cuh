// SPDX-License-Identifier: Apache-2.0
// What surrounds a task, by two warps that do not multiply: one gathers what the epilogue must know (its chain of reads
// took 2000 cycles of every task), one tells GEMM2 that rows are there (the fence took 1500).
#pragma once

#include "kernels/ptx/copy.cuh"
#include "kernels/sm90/grouped_gemm/task.cuh"

namespace sluice::sm90 {

template <class T>
__device__ __forceinline__ void brief_tasks(const GroupedGemmArgs& args, const Shared<T>& smem) {
  constexpr int kRows = (T::max_n + 31) / 32;
  const int lane = threadIdx.x & 31, num_tiles = args.header->num_tiles;
  for (Ring<T> ring;; ring.next_task()) {
    const int ticket = smem.next_task(ring.task());
    __syncwarp();
    if (lane == 0) smem.release_task(ring.task());
    Task t{};
    Tile tile{};
    int pair[kRows] = {};
    float factor[kRows] = {}, scale[4 * T::m_tiles];
    InputScale out_scale;
    if (ticket >= 0) {
      t = task_of<T>(args, ticket, num_tiles);
      const Gemm& g = args.gemm[t.which];
      tile = args.tiles[t.tile];
      const float shared_factor = g.x_scale->factor;
      if (g.out_scale != nullptr) out_scale = *g.out_scale;
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        const int n = 32 * i + lane;
        if (n < tile.count) {
          const int64_t at = static_cast<int64_t>(tile.row_base) + n;
          pair[i] = args.row_pair[at];
          factor[i] = shared_factor * (g.x_row_scale != nullptr ? g.x_row_scale[at] : 1.0f);
        }
      }
      const int64_t rows = static_cast<int64_t>(tile.expert) * g.row_tiles * kTileRows;
#pragma unroll
      for (int i = 0; i < 4 * T::m_tiles; ++i) {
        const int row = t.unit * T::m_tiles * kTileRows + 32 * i + lane;
        scale[i] = g.row_scale != nullptr && row < g.row_tiles * kTileRows ? g.row_scale[rows + row] : 1.0f;
      }
    }
    const int slot = smem.brief_slot(ring.task());
    ptx::mbarrier_wait(smem.brief_empty + slot, smem.brief_phase(ring.task()) ^ 1u);
    Brief<T>& b = smem.briefs[slot];
    if (lane == 0) {
      b.more = ticket >= 0;
      b.task = t;
      b.tile = tile;
      b.out_scale = out_scale;
    }
#pragma unroll
    for (int i = 0; i < kRows; ++i)
      if (32 * i + lane < T::max_n) b.row_pair[32 * i + lane] = pair[i], b.row_factor[32 * i + lane] = factor[i];
#pragma unroll
    for (int i = 0; i < 4 * T::m_tiles; ++i) b.row_scale[32 * i + lane] = scale[i];
    __syncwarp();
    if (lane == 0) ptx::mbarrier_arrive(smem.brief_full + slot);
    if (ticket < 0) return;
  }
}

// By one thread. The rows that the two warpgroups stored before they arrived on `stored` are read by the copy engine,
// perhaps of another block.
template <class T>
__device__ __forceinline__ void publish_rows(const GroupedGemmArgs& args, const Shared<T>& smem) {
  for (Ring<T> ring;; ring.next_task()) {
    const int slot = smem.brief_slot(ring.task());
    const uint32_t phase = smem.brief_phase(ring.task());
    ptx::mbarrier_wait(smem.brief_full + slot, phase);
    Brief<T>& b = smem.briefs[slot];
    if (!b.more) return;
    ptx::mbarrier_wait(smem.stored + slot, phase);
    const int tile = b.task.tile, parts = b.task.which == 0 && args.gemms == 2 ? b.parts[0] + b.parts[1] : 0;
    ptx::mbarrier_arrive(smem.brief_empty + slot);
    if (parts > 0) {
      ptx::fence_proxy_async();
      ptx::red_add_release(args.ready + tile, parts);
    }
  }
}

}  // namespace sluice::sm90
