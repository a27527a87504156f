// SPDX-License-Identifier: Apache-2.0
// Grouped GEMM with weights as the M side. A task is a tile of one expert's rows by 128 * m_tiles weight rows by a part
// of K. In one tile of FP8 block tokens are the M side (tokens_first.cuh).
// Warps 0 to 7 multiply (two warpgroups, each with 64 rows of every 128). Warp 8 draws tickets and streams weights,
// warp 9 streams rows, warp 10 gathers the parameters of the epilogues, warp 11 publishes the rows of GEMM2.
#pragma once

#include "kernels/sm90/grouped_gemm/complete_rows.cuh"
#include "kernels/sm90/grouped_gemm/epilogue_params.cuh"
#include "kernels/sm90/grouped_gemm/rounded.cuh"
#include "kernels/sm90/grouped_gemm/stream.cuh"
#include "kernels/sm90/grouped_gemm/tokens_first.cuh"
#include "kernels/sm90/launch.cuh"

namespace sluice::sm90 {

// Stores a task's accumulators to memory. Returns whether this warpgroup has now stored its final rows for this task.
// It is false for a split that is not the last one, and for an M-tile group beyond the last.
template <class T>
__device__ __forceinline__ bool run_epilogue(const GroupedGemmArgs& args, const EpilogueParams<T>& params,
                                             Accumulators<T>& acc, const Shared<T>& smem, const Warpgroup& group,
                                             int& exchange) {
  const GemmArgs& g = args.gemm[params.task.which];
  if (params.task.m_group >= m_groups_of<T>(g)) return false;
  if constexpr (T::tokens_first)
    if (!has_tokens(group.index, params.tile.padded)) return params.task.split == 0;
  if (g.splits > 1 && !reduce_splits<T>(args, params, acc, smem, group)) return false;
  if constexpr (T::tokens_first)
    store_tokens<T>(g, params, acc, smem, group);
  else if (g.epilogue.store == Store::result && !g.epilogue.out_f32 && g.epilogue.columns % 8 == 0)
    store_results<T>(g, params, acc, smem, group);
  else if (rounds_in_registers<T>(g))
    store_rounded<T>(g, params, acc, smem, group, exchange);
  else if (DecodeFactors<T>::can_own && g.epilogue.store == Store::activated && activates_in_registers(g))
    g.epilogue.gated ? store_activated<T, true>(g, params, acc, group)
                     : store_activated<T, false>(g, params, acc, group);
  else
    store_segments<T>(g, params, acc, smem, group);
  return true;
}

// The compiler knows that all threads of a barrier arrive together. With one barrier before the products and one after
// them it keeps the position of the ring in uniform registers. Without them the decoding loop of NVFP4 has 214
// instructions instead of 179 (when it was 244 instead of 214: EP8, 8 tokens, 97 us instead of 83).
template <class T>
__device__ __forceinline__ void consume(const GroupedGemmArgs& args, const Shared<T>& smem) {
  const Warpgroup group;
  float acc[T::m_tiles][T::max_n / 2];
  int exchange = 0;  // counts uses of the two buffers in which warps exchange maxima
  for (Ring<T> ring;; ring.next_task()) {
    // Barriers that only some tasks have (complete_rows) leave the compiler without that: the loop of decoded FP8 had
    // 222 instructions instead of 185.
    if constexpr (T::completes_by_warpgroup) ring.unify();
    const int slot = smem.params_slot(ring.task());
    ptx::mbarrier_wait(smem.params_full + slot, smem.params_phase(ring.task()));
    EpilogueParams<T>& params = smem.epilogue_params[slot];
    if (!params.more) return;
    group.sync();
    const int k_blocks = params.task.end - params.task.begin;
    const bool gated = args.gemm[params.task.which].epilogue.gated;
    if constexpr (T::tokens_first)
      multiply_tokens<T>(acc, smem, ring, k_blocks, gated, params.tile.padded);
    else
      multiply_padded<T, 1>(acc, smem, ring, k_blocks, gated, params.tile.padded);
    bool complete = run_epilogue<T>(args, params, acc, smem, group, exchange);
    group.sync();
    if constexpr (T::completes_by_warpgroup)
      if (complete && args.token_scale != nullptr && params.task.which == 0) {
        complete_rows<T>(args, params, smem, group);
        complete = false;  // published
      }
    if (group.thread == 0) {
      // Found again by the ring's position: an epilogue has no register for an address.
      const int after = smem.params_slot(ring.task());
      smem.epilogue_params[after].parts[group.index] = complete;
      ptx::mbarrier_arrive(smem.stored + after);
    }
  }
}

// Nanoseconds by which the second warpgroup starts later: half a task, so that it multiplies while the first one
// stores, and the other way round. FP8 block, Qwen3, 8192 tokens: 898 us; 900, 900 and 903 with 0, 400, 3000
// (docs/kernels/sm90_grouped_gemm.md).
constexpr unsigned kSecondWarpgroupDelay = 1000;

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
  const bool early = T::cluster == 1 && args.given.ids != nullptr;
  if (!early || warp != 8) ptx::griddepcontrol_wait();
  static_assert(T::blocks_per_sm <= 2);
  constexpr int kPool = T::blocks_per_sm == 1 ? 168 : 80;  // registers per thread at entry
  constexpr int kProducer = T::blocks_per_sm == 1 ? 56 : 48;
  constexpr int kConsumer = (kPool + (kPool - kProducer) / 2) / 8 * 8;
  if (warp >= 8) {
    ptx::setmaxnreg_dec<kProducer>();
    if (warp == 10) gather_epilogue_params<T>(args, smem);
    FirstTask first;
    if constexpr (T::cluster == 1)
      if (warp == 8 && early) first = first_task<T>(args, smem);
    if ((threadIdx.x & 31) == 0) {
      if (warp == 8 && !early) stream_weights<T, false>(args, smem, first);
      if constexpr (T::cluster == 1)
        if (warp == 8 && early) stream_weights<T, true>(args, smem, first);
      if (warp == 9) stream_rows<T>(args, smem);
      if (!T::completes_by_warp && warp == 11) publish_rows<T>(args, smem);
    }
    if (T::completes_by_warp && warp == 11) publish_rows<T>(args, smem);
    __syncwarp();
  } else {
    ptx::setmaxnreg_inc<kConsumer>();
    if (T::max_n >= 128 && warp >= 4) __nanosleep(kSecondWarpgroupDelay);
    consume<T>(args, smem);
  }
  // No block of a cluster exits while another one may still copy into its shared memory or arrive on its barriers.
  if constexpr (T::cluster > 1) ptx::cluster_sync();
}

}  // namespace sluice::sm90
