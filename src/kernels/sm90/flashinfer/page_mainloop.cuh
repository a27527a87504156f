// SPDX-License-Identifier: Apache-2.0
// FlashInfer's mainloop for prompts with a loader for pages: one thread brings a tile of keys or values by four bulk
// tensor copies. FlashInfer's own loader for pages has 128 threads gather rows of 16 bytes, which take issue slots and
// registers from the products. Products, softmax and the order of the tiles are FlashInfer's.
//
// A tile of 128 positions is two halves of 64, each in one page (blocks are powers of two from 64 on). The pool of
// pages is one matrix [rows, 128] to the tensor map. Its number of rows is not known here and the map does not need it:
// a half that lies beyond the sequence is read from the map's end, where the copy engine writes zeros.
#pragma once

#include <flashinfer/attention/hopper/prefill_sm90.cuh>
#include <flashinfer/attention/hopper/variants.cuh>

#include <bit>

namespace sluice::sm90 {

namespace fi = flashinfer;

// What StandardAttention reads.
struct AttentionScale {
  float sm_scale;
};

template <class Traits>
struct PageMainloop : fi::CollectiveMainloop<AttentionScale, Traits, /*CAUSAL=*/true> {
  using Base = fi::CollectiveMainloop<AttentionScale, Traits, true>;
  using Value = typename Traits::DTypeKV;
  using Pipeline = typename Base::MainloopPipeline;
  using State = typename Base::PipelineState;

  static constexpr int kPositions = Traits::CTA_KV, kWidth = Traits::HEAD_DIM_QK;
  static constexpr int kHalf = 64, kColumns = 64;  // of a copy: columns fill the 128 bytes of the swizzle
  static constexpr int kPastEnd = 0x7fffff00;      // the first row beyond the map
  static_assert(kPositions == 2 * kHalf && kWidth == 2 * kColumns && Traits::HEAD_DIM_VO == kWidth);
  static_assert(sizeof(Value) == 2);

  using CopyLayout =
      decltype(cute::tile_to_shape(cute::GMMA::Layout_K_SW128_Atom<Value>{}, cute::Shape<cute::_64, cute::_64>{}));
  static auto pool_of(const Value* pages) {
    return cute::make_tensor(cute::make_gmem_ptr(pages), cute::make_shape(int32_t{kPastEnd}, cute::Int<kWidth>{}),
                             cute::make_stride(cute::Int<kWidth>{}, cute::_1{}));
  }
  static auto map_of(const Value* pages) {
    return cute::make_tma_copy(cute::SM90_TMA_LOAD{}, pool_of(pages), CopyLayout{}, cute::Shape<cute::_64, cute::_64>{},
                               cute::_1{});
  }
  using Map = decltype(map_of(nullptr));

  struct Arguments {
    const typename Traits::DTypeQ* q;
    typename Base::LayoutT layout_q;
    const Value *keys, *values;  // [blocks, key_heads, block_size, kWidth]
    const int32_t* blocks;
    int key_heads, block_size;
    AttentionScale scale;
  };
  // window_left and additional_params are names that FlashInfer's functions read.
  struct Params {
    typename Base::LayoutT layout_q;
    typename Base::TMA_Q map_q;
    Map keys, values;
    const int32_t* blocks;
    int log2_block_size, block_rows;  // block_rows: of all key heads
    int window_left;
    AttentionScale additional_params;
  };

  static Params to_underlying_arguments(const Arguments& a) {
    const auto q = cute::make_tensor(cute::make_gmem_ptr(a.q), a.layout_q);
    return {a.layout_q,
            cute::make_tma_copy(cute::SM90_TMA_LOAD{}, q, typename Traits::SmemLayoutQ{},
                                cute::select<0, 2>(typename Traits::TileShape_QKD{}), cute::_1{}),
            map_of(a.keys),
            map_of(a.values),
            a.blocks,
            std::countr_zero(static_cast<unsigned>(a.block_size)),
            a.block_size * a.key_heads,
            /*window_left=*/-1,
            a.scale};
  }
  CUTLASS_DEVICE static void prefetch_tma_descriptors(const Params& p) {
    cute::prefetch_tma_descriptor(p.map_q.get_tma_descriptor());
    cute::prefetch_tma_descriptor(p.keys.get_tma_descriptor());
    cute::prefetch_tma_descriptor(p.values.get_tma_descriptor());
  }
  // Tiles that the last row of tile `q_tile` of the sequence's `rows` new rows sees.
  CUTLASS_DEVICE int get_num_kv_tiles(const Params&, int q_tile, int rows, int positions) {
    const int seen = min(positions, (q_tile + 1) * Traits::CTA_Q + positions - rows);
    return (seen + kPositions - 1) / kPositions;
  }

  // Where a sequence's pages are.
  struct Sequence {
    const int32_t* blocks;
    int first;  // row of its key head in a block
    int positions;
  };
  // Row of the pool where a half of a tile begins. Only the last tile's second half may lie beyond the sequence, and
  // its block beyond the list.
  CUTLASS_DEVICE static int find(const Params& p, const Sequence& s, int position) {
    if (position >= s.positions) return kPastEnd;
    const int offset = position & ((1 << p.log2_block_size) - 1);
    return __ldg(s.blocks + (position >> p.log2_block_size)) * p.block_rows + s.first + offset;
  }
  // A tile, 64 positions and 64 columns at a time, to where FlashInfer's layout of a stage has them.
  CUTLASS_DEVICE static void copy_tile(const Params& p, const Map& map, const Sequence& s, int tile, Value* stage,
                                       uint64_t* full) {
    const auto* descriptor = map.get_tma_descriptor();
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = find(p, s, tile * kPositions + i * kHalf);
#pragma unroll
      for (int column = 0; column < kWidth; column += kColumns)
        cute::SM90_TMA_LOAD_2D::copy(descriptor, full, static_cast<uint64_t>(cute::TMA::CacheHintSm90::EVICT_NORMAL),
                                     stage + column * kPositions + i * kHalf * kColumns, column, row);
    }
  }

  // By one warp, for one tile of rows. Names and order of the waits are those that FlashInfer's kernel expects.
  template <bool kWindow, class Coordinates, class Scheduler, class Storage>
  CUTLASS_DEVICE void load(const Params& p, Pipeline pipeline_k, Pipeline pipeline_v, State& write_k, State& write_v,
                           Storage& storage, Scheduler&, const typename Scheduler::Params&,
                           typename Scheduler::WorkTileInfo&, const Coordinates& at, int work) {
    const auto [q_tile, head, key_head, first_row, first_block, rows, positions, sequence] = at;
    constexpr int kStage = kPositions * kWidth;
    const bool leader = cute::elect_one_sync();
    int tile = get_num_kv_tiles(p, q_tile, rows, positions) - 1;
    const Sequence s{p.blocks + first_block, key_head << p.log2_block_size, positions};
    // The loading warp has 24 registers: a tile's rows are found again for its values, not kept.
    const auto bring_keys = [&](int of) {
      pipeline_k.producer_acquire(write_k);
      copy_tile(p, p.keys, s, of, storage.smem_k.data() + write_k.index() * kStage,
                pipeline_k.producer_get_barrier(write_k));
      ++write_k;
    };
    const auto bring_values = [&](int of) {
      pipeline_v.producer_acquire(write_v);
      copy_tile(p, p.values, s, of, storage.smem_v.data() + write_v.index() * kStage,
                pipeline_v.producer_get_barrier(write_v));
      ++write_v;
    };
    if (leader) bring_keys(tile);

    // The rows of the tile before have been multiplied.
    cutlass::arch::NamedBarrier::sync(Base::NUM_MMA_THREADS + Traits::NUM_PRODUCER_THREADS,
                                      static_cast<int>(fi::NamedBarriers::kQueryEmpty));
    if (leader) {
      using namespace cute;
      Tensor q = fi::get_local_tile_tensor(p.map_q.get_tma_tensor(p.layout_q.shape()),
                                           select<0, 2>(typename Traits::TileShape_QKD{}), head, first_row,
                                           rows)(_, _, q_tile);
      Tensor to = make_tensor(make_smem_ptr(storage.smem_q.data()), typename Traits::SmemLayoutQ{});
      auto [from_part, to_part] =
          tma_partition(p.map_q, _0{}, Layout<_1>{},
                        group_modes<0, 2>(make_tensor(to.data(), make_layout(to.layout(), Layout<_1>{}))),
                        group_modes<0, 2>(make_tensor(q.data(), make_layout(q.layout(), Layout<_1>{}))));
      storage.barrier_Q.arrive_and_expect_tx(Base::TmaTransactionBytesQ);
      copy(p.map_q.with(reinterpret_cast<cutlass::arch::ClusterTransactionBarrier::ValueType&>(storage.barrier_Q), 0),
           from_part, to_part);
    }
    // Results of the tile before have left the memory of the values.
    storage.barrier_O.wait((work + 1) % 2);
    if (leader) {
#pragma unroll 1
      for (; tile > 0; --tile) {
        bring_keys(tile - 1);
        bring_values(tile);
      }
      bring_values(0);
    }
    __syncwarp();  // before the next tile's barriers, which the whole warp meets
  }
};

}  // namespace sluice::sm90
