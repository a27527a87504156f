// SPDX-License-Identifier: Apache-2.0
// What the three instances of FlashInfer's kernel for prompts share: everything but their sizes and how keys and values
// are loaded.
#pragma once

#include "kernels/sm90/flashinfer/kernels.h"
#include "kernels/sm90/flashinfer/page_mainloop.cuh"
#include "kernels/sm90/flashinfer/tile_epilogue.cuh"
#include "kernels/sm90/launch.cuh"

namespace sluice::sm90 {

using Bf16 = cutlass::bfloat16_t;

// kPages: whole pages by the copy engine, else rows gathered by threads. Positions of a tile as FlashInfer has them.
template <bool kPages>
using FlashTraits = fi::AttentionKernelTraits</*USE_TMA_LOAD_KV=*/kPages, kFlashWidth, kFlashWidth, kFlashRows,
                                              /*CTA_KV=*/kPages ? 128 : 96, /*NUM_STAGES=*/2, Bf16, Bf16, Bf16, int32_t,
                                              fi::StandardAttention>;

template <class Traits, class Mainloop>
struct FlashKernel {
  using Epilogue = TileEpilogue<Traits>;
  using Scheduler = fi::BatchPrefillPersistentTileScheduler<int32_t>;
  static constexpr int kSharedBytes = sizeof(typename Traits::SharedStorage);

  static constexpr auto kernel() {
    return fi::PrefillWithKVCacheKernel<Mainloop, Epilogue, Traits, /*LEFT_SLIDING_WINDOW=*/false, /*CAUSAL=*/true,
                                        Scheduler>;
  }
  static void allow() { allow_shared_memory(kernel(), kSharedBytes); }
  // Args: FlashArgs or ExpandedArgs. `group`: query heads per key head.
  template <class Args>
  static void run(const Args& a, int group, const typename Mainloop::Params& mainloop, void* stream) {
    const auto epilogue = Epilogue::to_underlying_arguments({
        static_cast<Bf16*>(a.out),
        fi::get_gmem_layout(a.rows, a.heads, Traits::HEAD_DIM_VO, a.out_stride, Traits::HEAD_DIM_VO),
        /*lse_ptr=*/nullptr,
        fi::get_lse_gmem_layout(a.rows, a.heads),
    });
    const FlashWork& w = a.work;
    // The last array names sequences, for masks that are not used here.
    const auto scheduler =
        Scheduler::to_underlying_arguments({w.begin, w.head, w.tile, w.first_row, w.first_block, w.rows, w.positions,
                                            w.tile, cutlass::FastDivmod(group), a.heads});
    launch(kernel(), static_cast<unsigned>(a.grid), Traits::NUM_THREADS, kSharedBytes, stream, false, mainloop,
           epilogue, scheduler);
  }
};

inline auto query_layout(const FlashArgs& a) {
  return fi::get_gmem_layout(a.rows, a.heads, kFlashWidth, a.q_stride, kFlashWidth);
}

// The instance of whole pages (prefill_pages.cu).
void allow_flash_pages();
void launch_flash_pages(const FlashArgs& args, void* stream);

}  // namespace sluice::sm90
