// SPDX-License-Identifier: Apache-2.0
// Two warps that do not multiply. One gathers the parameters of the epilogue of each task ahead of it: this chain of
// reads took 2000 cycles of every task. The other tells GEMM2 that rows are in memory: this fence took 1500 cycles.
#pragma once

#include "kernels/ptx/copy.cuh"
#include "kernels/sm90/grouped_gemm/task.cuh"
#include "kernels/sm90/quantize/token_rows.cuh"

namespace sluice::sm90 {

template <class T>
__device__ __forceinline__ void gather_epilogue_params(const GroupedGemmArgs& args, const Shared<T>& smem) {
  constexpr int kRows = (T::max_n + 31) / 32;
  const int lane = threadIdx.x & 31, num_tiles = args.header->num_tiles;
  for (Ring<T> ring;; ring.next_task()) {
    const int ticket = smem.next_task(ring.task());
    __syncwarp();
    if (lane == 0) smem.release_task(ring.task());
    Task t{};
    RowTile tile{};
    int pair[kRows] = {};
    float factor[kRows] = {}, scale[4 * T::m_tiles];
    InputScale out_scale;
    if (ticket >= 0) {
      t = task_of<T>(args, ticket, num_tiles);
      const GemmArgs& g = args.gemm[t.which];
      tile = args.tiles[t.tile];
      if constexpr (T::completes_token_rows)  // the rows' factors are made with them
        if (t.which == 1 && args.token_scale != nullptr) wait_for_rows<T>(args, t.tile);
      const float shared_factor = g.x.scale->factor;
      if (g.epilogue.out_scale != nullptr) out_scale = *g.epilogue.out_scale;
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        const int n = 32 * i + lane;
        if (n < tile.count) {
          const int64_t at = static_cast<int64_t>(tile.row_base) + n;
          pair[i] = args.row_pair[at];
          factor[i] = shared_factor * (g.x.row_scale != nullptr ? __ldcg(g.x.row_scale + at) : 1.0f);
        }
      }
      const int64_t rows = static_cast<int64_t>(tile.expert) * g.m_tiles * kMTileRows;
#pragma unroll
      for (int i = 0; i < 4 * T::m_tiles; ++i) {
        const int row = t.m_group * T::m_tiles * kMTileRows + 32 * i + lane;
        scale[i] =
            g.weights.row_scale != nullptr && row < g.m_tiles * kMTileRows ? g.weights.row_scale[rows + row] : 1.0f;
      }
    }
    const int slot = smem.params_slot(ring.task());
    ptx::mbarrier_wait(smem.params_empty + slot, smem.params_phase(ring.task()) ^ 1u);
    EpilogueParams<T>& params = smem.epilogue_params[slot];
    if (lane == 0) {
      params.more = ticket >= 0;
      params.task = t;
      params.tile = tile;
      params.out_scale = out_scale;
    }
#pragma unroll
    for (int i = 0; i < kRows; ++i)
      if (32 * i + lane < T::max_n)
        params.row_pair[32 * i + lane] = pair[i], params.row_factor[32 * i + lane] = factor[i];
#pragma unroll
    for (int i = 0; i < 4 * T::m_tiles; ++i) params.row_scale[32 * i + lane] = scale[i];
    __syncwarp();
    if (lane == 0) ptx::mbarrier_arrive(smem.params_full + slot);
    if (ticket < 0) return;
  }
}

// NVFP4 per token: the scale of a row needs all of its columns. So the block that completes a tile rounds its rows, of
// up to kCompletedColumns columns. Reads go past the L1 cache, because other multiprocessors wrote these rows.
__device__ inline void complete_token_rows(const GroupedGemmArgs& args, const RowTile& tile, int lane) {
  const GemmArgs& one = args.gemm[0];
  uint8_t* rows =
      static_cast<uint8_t*>(one.epilogue.out) + static_cast<int64_t>(tile.row_base) * one.epilogue.out_k_blocks * 128;
  const bool holds = lane < one.epilogue.out_k_blocks * 8;
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

// Called by one thread, or by a whole warp if it may have to round rows. The two warpgroups stored their rows before
// they arrived on `stored`. The copy engine reads them next, perhaps that of another block.
template <class T>
__device__ __forceinline__ void publish_rows(const GroupedGemmArgs& args, const Shared<T>& smem) {
  const int lane = threadIdx.x & 31;
  for (Ring<T> ring;; ring.next_task()) {
    const int slot = smem.params_slot(ring.task());
    const uint32_t phase = smem.params_phase(ring.task());
    ptx::mbarrier_wait(smem.params_full + slot, phase);
    EpilogueParams<T>& params = smem.epilogue_params[slot];
    if (!params.more) return;
    ptx::mbarrier_wait(smem.stored + slot, phase);
    const int at = params.task.tile,
              parts = params.task.which == 0 && args.gemms == 2 ? params.parts[0] + params.parts[1] : 0;
    if constexpr (T::completes_by_warp) {
      const RowTile tile = params.tile;
      __syncwarp();
      if (lane == 0) ptx::mbarrier_arrive(smem.params_empty + slot);
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
      ptx::mbarrier_arrive(smem.params_empty + slot);
      if (parts > 0) {
        ptx::fence_proxy_async();
        ptx::red_add_release(args.ready + at, parts);
      }
    }
  }
}

}  // namespace sluice::sm90
