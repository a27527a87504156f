// SPDX-License-Identifier: Apache-2.0
// What surrounds a task, by two warps that do not multiply: one gathers what the epilogue must know (its chain of reads
// took 2000 cycles of every task), one tells GEMM2 that rows are there (the fence took 1500).
#pragma once

#include "kernels/ptx/copy.cuh"
#include "kernels/sm90/grouped_gemm/task.cuh"
#include "kernels/sm90/quantize/token_rows.cuh"

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
      if constexpr (T::completes_token_rows)  // the rows' factors are made with them
        if (t.which == 1 && args.token_scale != nullptr) wait_for_rows<T>(args, t.tile);
      const float shared_factor = g.x_scale->factor;
      if (g.out_scale != nullptr) out_scale = *g.out_scale;
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        const int n = 32 * i + lane;
        if (n < tile.count) {
          const int64_t at = static_cast<int64_t>(tile.row_base) + n;
          pair[i] = args.row_pair[at];
          factor[i] = shared_factor * (g.x_row_scale != nullptr ? __ldcg(g.x_row_scale + at) : 1.0f);
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

// NVFP4 per token: a row's scale needs all of its columns, so the block that completes a tile rounds its rows, of up to
// kCompletedColumns. Reads pass by L1: other multiprocessors wrote.
__device__ inline void complete_token_rows(const GroupedGemmArgs& args, const Tile& tile, int lane) {
  const Gemm& one = args.gemm[0];
  uint8_t* rows = static_cast<uint8_t*>(one.out) + static_cast<int64_t>(tile.row_base) * one.out_slabs * 128;
  const bool holds = lane < one.out_slabs * 8;
  const auto load = [&](int n) {
    return holds && n < tile.count ? __ldcg(PlacedRow{rows, n, tile.padded}.piece(lane)) : uint4{};
  };
  uint4 v = load(0);
  for (int n = 0; n < tile.count; ++n) {
    const uint4 next = load(n + 1);
    const format::Nvfp4Global global = token_global(amax_pairs(v));
    v = rounded_piece(v, global);
    if (holds) *PlacedRow{rows, n, tile.padded}.piece(lane) = v;
    if (lane == 0) args.token_scale[tile.row_base + n] = global.decode;
    v = next;
  }
}

// By one thread, or by a warp where it may have to round rows. The rows that the two warpgroups stored before they
// arrived on `stored` are read by the copy engine, perhaps of another block.
template <class T>
__device__ __forceinline__ void publish_rows(const GroupedGemmArgs& args, const Shared<T>& smem) {
  const int lane = threadIdx.x & 31;
  for (Ring<T> ring;; ring.next_task()) {
    const int slot = smem.brief_slot(ring.task());
    const uint32_t phase = smem.brief_phase(ring.task());
    ptx::mbarrier_wait(smem.brief_full + slot, phase);
    Brief<T>& b = smem.briefs[slot];
    if (!b.more) return;
    ptx::mbarrier_wait(smem.stored + slot, phase);
    const int at = b.task.tile, parts = b.task.which == 0 && args.gemms == 2 ? b.parts[0] + b.parts[1] : 0;
    if constexpr (T::completes_token_rows) {
      const Tile tile = b.tile;
      __syncwarp();
      if (lane == 0) ptx::mbarrier_arrive(smem.brief_empty + slot);
      if (parts == 0) continue;
      int stored = 0;
      if (lane == 0) {
        ptx::fence_proxy_async();
        stored = ptx::atom_add_acq_rel(args.ready + at, parts) + parts;
      }
      stored = __shfl_sync(0xffffffffu, stored, 0);
      __syncwarp();
      if (args.token_scale == nullptr || stored < stored_parts<T>(args)) continue;
      complete_token_rows(args, tile, lane);
      ptx::fence_proxy_async();
      __syncwarp();
      if (lane == 0) ptx::red_add_release(args.ready + at, 1);
    } else {
      ptx::mbarrier_arrive(smem.brief_empty + slot);
      if (parts > 0) {
        ptx::fence_proxy_async();
        ptx::red_add_release(args.ready + at, parts);
      }
    }
  }
}

}  // namespace sluice::sm90
