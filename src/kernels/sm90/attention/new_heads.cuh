// SPDX-License-Identifier: Apache-2.0
// What the blocks of attention_tokens.cuh do where q, k and v come as they were projected (AttentionArgs::projected):
// an item norms and rotates its queries in shared memory. The item with a sequence's last position does the same with
// the new key, stores it and the new value in the pages, and places both in its last tile, from which the row of the
// new position was left out. So no block reads from the pages what this kernel stores, and q stays in the projected
// rows as it was, where every part of a sequence reads it.
//
// All tiles may therefore be copied before the kernel ahead has finished. Their positions were stored in earlier steps
// (ops/batch.h), and a copy or move_ints_kernel has brought the batch of this step since. Neither of them lets the next
// kernel start early, and every kernel ends after its own griddepcontrol.wait: when the first kernel of the step
// starts, all earlier steps are complete, and what they stored can be seen.
#pragma once

#include "kernels/sm90/attention/token_copies.cuh"
#include "kernels/sm90/rope/halves.cuh"

namespace sluice::sm90 {

// The item's queries, and the new key and value of the item that holds the new position: the rows `fresh` of shared
// memory, [2][kWidth]. By the computing warps. ready() waits until the queries are in shared memory.
template <int kWidth, class Page, class Ready>
__device__ __forceinline__ void prepare_heads(const AttentionArgs& a, const TokenItem& item, uint8_t* queries,
                                              Page* fresh, Ready&& ready) {
  using Queries = PageTile<kWidth, bf16_t>;
  constexpr int kLanes = kWidth / 16, kAtOnce = kAttentionThreads / kLanes, kHalf = kWidth / 2, kN = kHalfValues;
  const ProjectedHeads& from = a.projected;
  const int lane = static_cast<int>(threadIdx.x) % kLanes, queries_here = item.pairs, row = item.first_row;
  const int heads = queries_here + (item.holds_new() ? 2 : 0);  // the queries', the key's, the value's
  // To the L1 cache, an array for each warp, while the queries are on their way. Registers for them would be spilled.
  const int warp = static_cast<int>(threadIdx.x) / 32, line = static_cast<int>(threadIdx.x) % 32 * 32;
  const int64_t angles = int64_t{row} * kHalf;
  const float* array = warp == 0 ? from.q_norm : warp == 1 ? from.k_norm : warp == 2 ? from.cosine : from.sine;
  if (array != nullptr && line < (warp < 2 ? kWidth : kHalf)) ptx::prefetch_l1(array + (warp < 2 ? 0 : angles) + line);
#pragma unroll 1
  for (int first = 0; first < heads; first += kAtOnce) {
    const int head = first + static_cast<int>(threadIdx.x) / kLanes;
    const bool query = head < queries_here, is_new = !query && head < heads, key = head == queries_here && is_new;
    const float* norm = query ? from.q_norm : key ? from.k_norm : nullptr;
    float p[kN] = {}, q[kN] = {};
    int slot = -1;
    if (is_new) {
      const bf16_t* x = (key ? from.keys : from.values) + row * a.q.stride + item.key_head * kWidth + kN * lane;
      load_elements<kN>(x, p);
      load_elements<kN>(x + kHalf, q);
      slot = from.kv_slots[row];
    }
    if (first == 0) ready();
    auto* low = reinterpret_cast<bf16_t*>(queries + Queries::place(head, lane));
    auto* high = reinterpret_cast<bf16_t*>(queries + Queries::place(head, lane + kLanes));
    if (query) {
      load_elements<kN>(low, p);
      load_elements<kN>(high, q);
    }
    const float squares = halves_squares<kLanes>(p, q);
    if (norm != nullptr) {
      float low_weight[kN], high_weight[kN];
      load_elements<kN>(norm + kN * lane, low_weight);
      load_elements<kN>(norm + kHalf + kN * lane, high_weight);
      norm_halves<kLanes>(p, q, squares, query ? from.q_eps : from.k_eps, low_weight, high_weight);
    }
    if (from.cosine != nullptr && (query || key)) {
      float cosine[kN], sine[kN];
      load_elements<kN>(from.cosine + angles + kN * lane, cosine);
      load_elements<kN>(from.sine + angles + kN * lane, sine);
      rotate_halves(p, q, cosine, sine);
    }
    if (query && (from.q_norm != nullptr || from.cosine != nullptr)) {
      store_elements<kN>(p, low);
      store_elements<kN>(q, high);
    }
    if (!is_new) continue;
    Page* to = fresh + (key ? 0 : kWidth) + kN * lane;
    if constexpr (std::is_same_v<Page, uint8_t>) {
      const float scale = key ? from.key_scale : a.value_scale;
#pragma unroll
      for (int i = 0; i < kN; ++i) p[i] = rounded<bf16_t>(p[i]), q[i] = rounded<bf16_t>(q[i]);
      store_codes<kN>(p, scale, to);
      store_codes<kN>(q, scale, to + kHalf);
    } else {
      store_elements<kN>(p, to);
      store_elements<kN>(q, to + kHalf);
    }
    if (slot < 0) continue;
    using Piece = std::conditional_t<std::is_same_v<Page, uint8_t>, uint2, uint4>;  // kN elements
    Page* page = static_cast<Page*>(key ? from.key_pages : from.value_pages) +
                 page_element(slot, item.key_head, a.shape.key_heads, a.block_size, kWidth) + kN * lane;
    *reinterpret_cast<Piece*>(page) = *reinterpret_cast<const Piece*>(to);
    *reinterpret_cast<Piece*>(page + kHalf) = *reinterpret_cast<const Piece*>(to + kHalf);
  }
  ptx::bar_sync(1, kAttentionThreads);
}

// By one warp, for itself: pieces [first, first + count) of the row `fresh` become those of row `row` of a tile.
template <int kWidth, class Page>
__device__ __forceinline__ void place_row(uint8_t* tile, int row, int first, int count, const Page* fresh) {
  const int lane = threadIdx.x & 31;
  if (lane < count)
    *reinterpret_cast<uint4*>(tile + PageTile<kWidth, Page>::place(row, first + lane)) =
        reinterpret_cast<const uint4*>(fresh)[first + lane];
  __syncwarp();
}

}  // namespace sluice::sm90
