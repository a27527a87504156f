// SPDX-License-Identifier: Apache-2.0
#include "kernels/sm90/flashinfer/expanded.h"

#include "kernels/sm90/flashinfer/prefill_kernel.cuh"

namespace sluice::sm90 {

namespace {

using Traits =
    fi::AttentionKernelTraits</*USE_TMA_LOAD_KV=*/true, kExpandedKey, kExpandedValue, kFlashRows, kExpandedTile,
                              /*NUM_STAGES=*/2, Bf16, Bf16, Bf16, int32_t, fi::StandardAttention>;
// Columns of a box of the copy engine, which lie together in shared memory: 128 bytes of each row.
constexpr int kBox = 64;

// With a producer that needs few registers: FlashInfer's own spills at this head size.
struct Mainloop : fi::CollectiveMainloop<AttentionScale, Traits, /*CAUSAL=*/true> {
  // Rows from `row` on of a head, in boxes of all rows of a tile.
  template <int kRows, int kColumns, class Copy, class Rows>
  CUTLASS_DEVICE static void copy_rows(const Copy& copy, const Rows& rows, uint64_t* barrier, Bf16* to, int row,
                                       int head) {
#pragma unroll
    for (int column = 0; column < kColumns; column += kBox) {
      const auto at = rows(row, column, head);
      cute::SM90_TMA_LOAD::copy(copy.get_tma_descriptor(), barrier,
                                static_cast<uint64_t>(cute::TMA::CacheHintSm90::EVICT_NORMAL), to + kRows * column,
                                cute::get<0>(at), cute::get<1>(at), cute::get<2>(at));
    }
  }

  template <bool kWindow, class Coordinates, class Schedule, class Shared>
  CUTLASS_DEVICE void load(const Params& p, MainloopPipeline key_pipeline, MainloopPipeline value_pipeline,
                           PipelineState& key_stage, PipelineState& value_stage, Shared& shared, Schedule&,
                           const typename Schedule::Params&, typename Schedule::WorkTileInfo&, const Coordinates& item,
                           int items_before) {
    static_assert(!kWindow);
    const auto [q_tile, q_head, head, first_row, first_position, rows, positions, sequence] = item;
    const int tiles = get_num_kv_tiles(p, q_tile, rows, positions);
    const bool one = cute::elect_one_sync() != 0;
    const auto load_values = [&](int tile) {
      value_pipeline.producer_acquire(value_stage);
      copy_rows<kExpandedTile, kExpandedValue>(
          p.tma_load_V, p.tma_load_V.get_tma_tensor(p.layout_V.shape()),
          value_pipeline.producer_get_barrier(value_stage),
          shared.smem_v.data() + value_stage.index() * kExpandedTile * kExpandedValue,
          first_position + tile * kExpandedTile, head);
      ++value_stage;
    };
#pragma unroll 1
    for (int tile = tiles - 1; tile >= 0; --tile) {
      if (one) {
        key_pipeline.producer_acquire(key_stage);
        copy_rows<kExpandedTile, kExpandedKey>(p.tma_load_K, p.tma_load_K.get_tma_tensor(p.layout_K.shape()),
                                               key_pipeline.producer_get_barrier(key_stage),
                                               shared.smem_k.data() + key_stage.index() * kExpandedTile * kExpandedKey,
                                               first_position + tile * kExpandedTile, head);
        ++key_stage;
      }
      if (tile + 1 < tiles) {
        if (one) load_values(tile + 1);
        continue;
      }
      // The queries' memory is free once the item before has used them, the values' once its result has left it.
      cutlass::arch::NamedBarrier::sync(NUM_MMA_THREADS + Traits::NUM_PRODUCER_THREADS,
                                        static_cast<int>(fi::NamedBarriers::kQueryEmpty));
      if (one) {
        shared.barrier_Q.arrive_and_expect_tx(TmaTransactionBytesQ);
        copy_rows<kFlashRows, kExpandedKey>(p.tma_load_Q, p.tma_load_Q.get_tma_tensor(p.layout_Q.shape()),
                                            reinterpret_cast<uint64_t*>(&shared.barrier_Q), shared.smem_q.data(),
                                            first_row + q_tile * kFlashRows, q_head);
      }
      shared.barrier_O.wait((items_before + 1) % 2);
    }
    if (one) load_values(0);
    __syncwarp();  // before the next item's barriers, which the whole warp meets
  }
};
using Kernel = FlashKernel<Traits, Mainloop>;

}  // namespace

void allow_expanded() { Kernel::allow(); }

void launch_expanded(const ExpandedArgs& a, void* stream) {
  const auto mainloop = Mainloop::to_underlying_arguments({
      static_cast<const Bf16*>(a.q),
      fi::get_gmem_layout(a.rows, a.heads, kExpandedKey, a.q_stride, kExpandedKey),
      static_cast<const Bf16*>(a.keys),
      fi::get_gmem_layout(a.positions, a.heads, kExpandedKey, a.stride, a.head_stride),
      static_cast<const Bf16*>(a.values),
      fi::get_gmem_layout(a.positions, a.heads, kExpandedValue, a.stride, a.head_stride),
      /*window_left=*/-1,
      {a.scale},
  });
  Kernel::run(a, 1, mainloop, stream);
}

}  // namespace sluice::sm90
