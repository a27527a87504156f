// SPDX-License-Identifier: Apache-2.0
// Grouped GEMM, weights as the M side: tasks of (tile of one expert's rows, 128 * m_tiles weight rows, part of K).
// Tokens are the M side in one tile of FP8 block (tokens_first.cuh).
// Warps 0-7 multiply (two warpgroups, 64 rows of every 128 each), warp 8 deals tasks and streams weights, warp 9
// streams rows, warp 10 gathers what the epilogues need, warp 11 publishes GEMM2's rows.
#pragma once

#include "kernels/sm90/grouped_gemm/brief.cuh"
#include "kernels/sm90/grouped_gemm/rounded.cuh"
#include "kernels/sm90/grouped_gemm/stream.cuh"
#include "kernels/sm90/grouped_gemm/tokens_first.cuh"
#include "kernels/sm90/launch.cuh"

namespace sluice::sm90 {

// Whether this warpgroup's part of the tile's rows is complete.
template <class T>
__device__ __forceinline__ bool finish_task(const GroupedGemmArgs& args, const Brief<T>& b, Accumulators<T>& acc,
                                            const Shared<T>& smem, const Group& group, int& turn) {
  const Gemm& g = args.gemm[b.task.which];
  if (b.task.unit >= units_of<T>(g)) return false;
  if constexpr (T::tokens_first)
    if (!has_tokens(group.index, b.tile.padded)) return b.task.split == 0;
  if (g.splits > 1 && !join_splits<T>(args, b, acc, smem, group)) return false;
  if constexpr (T::tokens_first)
    store_tokens<T>(g, b, acc, smem, group);
  else if (g.store == Store::result && !g.out_f32 && g.columns % 8 == 0)
    store_results<T>(g, b, acc, smem, group);
  else if (rounds_in_registers<T>(g))
    store_rounded<T>(g, b, acc, smem, group, turn);
  else if (RowFactors<T>::can_own && g.store == Store::activated && activates_in_registers(g))
    g.gated ? store_activated<T, true>(g, b, acc, group) : store_activated<T, false>(g, b, acc, group);
  else
    store_pieces<T>(g, b, acc, smem, group);
  return true;
}

// Threads of a barrier are known to come together: with one before and one after the products the ring's position stays
// in uniform registers. Without, the decoding loop of NVFP4 has 214 instructions instead of 179 (when it was 244
// instead of 214: EP8, 8 tokens, 97 us instead of 83).
template <class T>
__device__ __forceinline__ void consume(const GroupedGemmArgs& args, const Shared<T>& smem) {
  const Group group;
  float acc[T::m_tiles][T::max_n / 2];
  int turn = 0;  // of the buffers that maxima are exchanged in
  for (Ring<T> ring;; ring.next_task()) {
    const int slot = smem.brief_slot(ring.task());
    ptx::mbarrier_wait(smem.brief_full + slot, smem.brief_phase(ring.task()));
    Brief<T>& b = smem.briefs[slot];
    if (!b.more) return;
    group.sync();
    const int slabs = b.task.end - b.task.begin;
    const bool gated = args.gemm[b.task.which].gated;
    if constexpr (T::tokens_first)
      multiply_tokens<T>(acc, smem, ring, slabs, gated, b.tile.padded);
    else
      multiply_padded<T, 1>(acc, smem, ring, slabs, gated, b.tile.padded);
    const bool complete = finish_task<T>(args, b, acc, smem, group, turn);
    group.sync();
    if (group.thread == 0) {
      // Found again by the ring's position: an epilogue has no register for an address.
      const int after = smem.brief_slot(ring.task());
      smem.briefs[after].parts[group.index] = complete;
      ptx::mbarrier_arrive(smem.stored + after);
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
  const bool early = T::cluster == 1 && args.given.ids != nullptr;
  if (!early || warp != 8) ptx::griddepcontrol_wait();
  constexpr int kPool = T::blocks_per_sm == 1 ? 168 : T::blocks_per_sm == 2 ? 80 : 56;  // registers a thread at entry
  constexpr int kProducer = T::blocks_per_sm == 1 ? 56 : T::blocks_per_sm == 2 ? 48 : 40;
  constexpr int kConsumer = (kPool + (kPool - kProducer) / 2) / 8 * 8;
  if (warp >= 8) {
    ptx::setmaxnreg_dec<kProducer>();
    if (warp == 10) brief_tasks<T>(args, smem);
    FirstTask first;
    if constexpr (T::cluster == 1)
      if (warp == 8 && early) first = first_task<T>(args, smem);
    if ((threadIdx.x & 31) == 0) {
      if (warp == 8 && !early) stream_weights<T, false>(args, smem, first);
      if constexpr (T::cluster == 1)
        if (warp == 8 && early) stream_weights<T, true>(args, smem, first);
      if (warp == 9) stream_rows<T>(args, smem);
      if (!T::completes_token_rows && warp == 11) publish_rows<T>(args, smem);
    }
    if (T::completes_token_rows && warp == 11) publish_rows<T>(args, smem);
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
