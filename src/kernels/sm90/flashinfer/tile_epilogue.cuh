// SPDX-License-Identifier: Apache-2.0
// FlashInfer's epilogue of a tile of results, with another barrier between the warps that write the tile to shared
// memory and those that read it.
//
// FlashInfer 0.7.2.post1 lets every thread arrive at that barrier and then wait at it, so that a thread counts twice
// among as many arrivals as there are threads. Four of eight warps that are ahead complete it, and read rows that a
// warp behind them has not written: what they find is values of V, which had the memory before. Under memcheck, which
// holds up one warp more than another, the last columns of the first warp's rows were wrong in one tile of some
// hundred. Without the tool that was never seen.
#pragma once

#include <flashinfer/attention/hopper/prefill_sm90.cuh>

namespace sluice::sm90 {

template <class Traits>
struct TileEpilogue : flashinfer::CollectiveEpilogue<Traits> {
  using Base = flashinfer::CollectiveEpilogue<Traits>;

  // By all threads that multiply, `thread` of Base::NUM_MMA_THREADS: their sums of one tile of rows and head, rounded,
  // to p.O_ptr. The log-sum-exp that FlashInfer's kernel has as well is not stored.
  template <class Sums, class LogSumExp, class Shared, class Products, class Coordinates>
  CUTLASS_DEVICE void store(const typename Base::Params& p, const Sums& sums, const LogSumExp&, Shared& shared,
                            Products products, int thread, const Coordinates& at) {
    const auto [tile, head, key_head, first_row, first_position, rows, positions, sequence] = at;
    const auto memory = cute::make_tensor(cute::make_smem_ptr(shared.smem_o.data()), typename Base::SmemLayoutO{});
    const auto to_memory = cute::make_tiled_copy_C(typename Base::SmemCopyAtomO{}, products);
    const auto own = to_memory.get_thread_slice(thread);
    const auto rounded = flashinfer::convert_type<typename Base::DTypeO>(sums);
    // All have read the values, whose memory the results take.
    cutlass::arch::NamedBarrier::sync(Base::NUM_MMA_THREADS, static_cast<int>(flashinfer::NamedBarriers::kValueEmpty));
    cute::copy(to_memory, own.retile_S(rounded), own.partition_D(memory));
    // The copy engine writes the next values there.
    cutlass::arch::fence_view_async_shared();
    // All have written their rows.
    cutlass::arch::NamedBarrier::sync(Base::NUM_MMA_THREADS, cutlass::arch::ReservedNamedBarriers::EpilogueBarrier);
    flashinfer::write_O<Base::NUM_COPY_THREADS>(p.O_ptr, typename Base::TiledCopyO{}, p.layout_O,
                                                cute::select<0, 1>(typename Base::TileShape_PDV{}), memory, thread,
                                                tile, head, first_row, rows, /*write_warp_idx=*/0);
  }
};

}  // namespace sluice::sm90
