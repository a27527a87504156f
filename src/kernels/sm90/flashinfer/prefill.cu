// SPDX-License-Identifier: Apache-2.0
#include <flashinfer/attention/hopper/prefill_sm90.cuh>
#include <flashinfer/attention/hopper/variants.cuh>

#include "kernels/sm90/flashinfer/kernels.h"
#include "kernels/sm90/launch.cuh"

namespace sluice::sm90 {

namespace {

namespace fi = flashinfer;
using Bf16 = cutlass::bfloat16_t;

// What StandardAttention reads.
struct Scale {
  float sm_scale;
};
using Traits =
    fi::AttentionKernelTraits</*USE_TMA_LOAD_KV=*/false, kFlashWidth, kFlashWidth, kFlashRows, kFlashPositions,
                              /*NUM_STAGES=*/2, Bf16, Bf16, Bf16, int32_t, fi::StandardAttention>;
using Mainloop = fi::SparseCollectiveMainloop<Scale, Traits, /*CAUSAL=*/true>;
using Epilogue = fi::CollectiveEpilogue<Traits>;
using Scheduler = fi::BatchPrefillPersistentTileScheduler<int32_t>;
constexpr int kSharedBytes = sizeof(Traits::SharedStorage);

constexpr auto kernel() {
  return fi::PrefillWithKVCacheKernel<Mainloop, Epilogue, Traits, /*LEFT_SLIDING_WINDOW=*/false, /*CAUSAL=*/true,
                                      Scheduler>;
}

}  // namespace

bool has_flashinfer() { return true; }

void allow_flash() { allow_shared_memory(kernel(), kSharedBytes); }

void launch_flash(const FlashArgs& a, void* stream) {
  const int64_t head_stride = int64_t{a.block_size} * kFlashWidth, page_stride = head_stride * a.key_heads;
  const auto pages = fi::get_gmem_layout(0, a.key_heads, kFlashWidth, kFlashWidth, head_stride);
  const auto mainloop = Mainloop::to_underlying_arguments({
      static_cast<const Bf16*>(a.q),
      fi::get_gmem_layout(a.rows, a.heads, kFlashWidth, a.q_stride, kFlashWidth),
      static_cast<const Bf16*>(a.keys),
      pages,
      static_cast<const Bf16*>(a.values),
      pages,
      a.blocks,
      /*window_left=*/-1,
      page_stride,
      page_stride,
      static_cast<uint32_t>(a.block_size),
      {a.scale},
  });
  const auto epilogue = Epilogue::to_underlying_arguments({
      static_cast<Bf16*>(a.out),
      fi::get_gmem_layout(a.rows, a.heads, kFlashWidth, a.out_stride, kFlashWidth),
      /*lse_ptr=*/nullptr,
      fi::get_lse_gmem_layout(a.rows, a.heads),
  });
  const FlashWork& w = a.work;
  // The last array names sequences, for masks that are not used here.
  const auto scheduler =
      Scheduler::to_underlying_arguments({w.begin, w.head, w.tile, w.first_row, w.first_block, w.rows, w.positions,
                                          w.tile, cutlass::FastDivmod(a.heads / a.key_heads), a.heads});
  launch(kernel(), static_cast<unsigned>(a.grid), Traits::NUM_THREADS, kSharedBytes, stream, false, mainloop, epilogue,
         scheduler);
}

}  // namespace sluice::sm90
