// SPDX-License-Identifier: Apache-2.0
// How the blocks of attention_tokens.cuh find their work and bring it to shared memory.
#pragma once

#include "kernels/ptx/copy.cuh"
#include "kernels/ptx/cp_async.cuh"
#include "kernels/ptx/mbarrier.cuh"
#include "kernels/sm90/attention/attention_bf16.cuh"

namespace sluice::sm90 {

// Four warps that compute, and one that copies.
inline constexpr int kTokenThreads = kAttentionThreads + 32;

struct alignas(16) TokenItem {
  int32_t first_row, pairs;  // of the sequence; pair p is row p / group, head p % group
  int32_t context, end;      // position of the first row, positions that the last one sees
  int32_t first_block;       // where the sequence's blocks begin in the batch's list
  int16_t key_head;
  int16_t part;                   // of a split sequence, whose results the second kernel folds; else -1
  int32_t first_tile, last_tile;  // of this item; none: nothing to do

  __device__ bool split() const { return part >= 0; }
  // Whether its tiles have the last position.
  __device__ bool holds_new() const { return last_tile * kAttentionTile >= end; }
};

// As large as kTiles tiles of bfloat16 keys and of values, and the rest.
template <int kWidth, class Page, int kTiles>
struct TokensShared {
  static constexpr int stages = kTiles * 2 / int{sizeof(Page)};
  static constexpr int tile_bytes = PageTile<kWidth, Page>::bytes;
  static constexpr int probability_bytes = kAttentionFewRows * kAttentionTile * 2;
  static constexpr int keys = 0, values = stages * tile_bytes;                   // [stages] tiles each
  static constexpr int queries = 2 * stages * tile_bytes;                        // bf16 [16][kWidth], swizzled
  static constexpr int high = queries + kAttentionFewRows * kWidth * 2;          // bf16 [16][64], swizzled
  static constexpr int low = high + probability_bytes;                           // the same
  static constexpr int maxima = low + probability_bytes;                         // float [4 warps][16]
  static constexpr int fresh = maxima + 4 * kAttentionFewRows * 4;               // Page [2][kWidth]: new_heads.cuh
  static constexpr int items = fresh + 2 * kWidth * int{sizeof(Page)};           // TokenItem [kTokenItems]
  static constexpr int barriers = items + kTokenItems * int{sizeof(TokenItem)};  // TokenBarriers
  static constexpr int bytes = barriers + (4 * stages + 2) * 8;
  static_assert(token_blocks_per_multiprocessor(kTiles) * (bytes + 1024) <= 228 * 1024);
};

// Item `item` of the grid's.
__device__ __forceinline__ TokenItem token_item(const AttentionArgs& a, int item) {
  const int group = a.shape.group(), parts = static_cast<int>(a.plan.parts);
  const int rest = item / a.shape.key_heads, key_head = item % a.shape.key_heads, part = rest % parts, s = rest / parts;
  const int context = a.contexts[s], first_row = a.row_begin[s], next_row = a.row_begin[s + 1];
  const int rows = next_row - first_row;
  TokenItem t;
  t.first_row = first_row;
  t.pairs = rows * group;
  t.context = context;
  t.end = context + rows;
  t.first_block = a.block_begin[s];
  const SequenceParts of_sequence = a.plan.parts_of(t.end);
  t.key_head = static_cast<int16_t>(key_head);
  t.part = static_cast<int16_t>(of_sequence.count > 1 ? part : -1);
  t.first_tile = of_sequence.first_tile(part);
  t.last_tile = min(of_sequence.first_tile(part + 1), ceil_div(t.end, kAttentionTile));
  const bool own = t.pairs > 0 && t.pairs <= kAttentionFewRows && (a.prefill_rows == 0 || rows < a.prefill_rows);
  if (!own || part >= of_sequence.count) t.last_tile = 0;
  return t;
}

// Barriers of shared memory: a tile or an item's queries are there, or have been read.
template <int kStages>
struct TokenBarriers {
  uint64_t keys_ready[kStages], values_ready[kStages], keys_read[kStages], values_read[kStages];
  uint64_t queries_ready, queries_read;

  __device__ void init() {
    for (int i = 0; i < kStages; ++i) {
      ptx::mbarrier_init(keys_ready + i, 32);  // the lanes that copy
      ptx::mbarrier_init(values_ready + i, 32);
      ptx::mbarrier_init(keys_read + i, kAttentionThreads / 32);  // the warps that compute
      ptx::mbarrier_init(values_read + i, kAttentionThreads / 32);
    }
    ptx::mbarrier_init(&queries_ready, 32);
    ptx::mbarrier_init(&queries_read, kAttentionThreads / 32);
  }
};

// A walk over the tiles of a block's items.
struct TokenCursor {
  int item, tile;

  // To the next item that has tiles, if this one has no more.
  __device__ __forceinline__ void skip_finished(const TokenItem* items, int count) {
    while (item < count && tile >= items[item].last_tile)
      if (++item < count) tile = items[item].first_tile;
  }
  __device__ __forceinline__ void advance(const TokenItem* items, int count) {
    ++tile;
    skip_finished(items, count);
  }
};

// Where a tile is in the pages. A block of the pages holds whole tiles, or `page_row` is not used.
struct TokenTile {
  int item = -1, tile = 0;  // item -1: no tile
  int page_row = 0;         // of its first position, counted in rows of one head

  __device__ __forceinline__ TokenTile of_lane(int lane) const {
    return {__shfl_sync(0xffffffffu, item, lane), __shfl_sync(0xffffffffu, tile, lane),
            __shfl_sync(0xffffffffu, page_row, lane)};
  }
};

__device__ __forceinline__ bool whole_tiles(const AttentionArgs& a) { return a.block_size % kAttentionTile == 0; }

__device__ __forceinline__ int token_page_row(const AttentionArgs& a, const TokenItem& item, int position) {
  const int block = position / a.block_size;
  return (a.blocks[item.first_block + block] * a.shape.key_heads + item.key_head) * a.block_size + position -
         block * a.block_size;
}

__device__ __forceinline__ TokenTile find_tile(const AttentionArgs& a, const TokenItem* items, int count,
                                               const TokenCursor& at) {
  if (at.item >= count) return {};
  return {at.item, at.tile, whole_tiles(a) ? token_page_row(a, items[at.item], at.tile * kAttentionTile) : 0};
}

// Whether q, k and v come as they were projected.
template <int kTiles>
__device__ __forceinline__ bool comes_projected(const AttentionArgs& a) {
  if constexpr (!takes_projected_heads(kTiles)) return false;
  return a.projected.keys != nullptr;
}
// Positions of the item's sequence whose keys and values are in the pages before the kernel ends.
template <int kTiles>
__device__ __forceinline__ int positions_in_pages(const AttentionArgs& a, const TokenItem& item) {
  return comes_projected<kTiles>(a) ? item.context : item.end;
}

// By one warp: copies the rows [from, until) of a tile of keys or values to shared memory, all of which exist.
template <int kWidth, class Page>
__device__ __forceinline__ void copy_rows(const AttentionArgs& a, const TokenItem& item, const TokenTile& t,
                                          const void* pages, uint32_t to, int from, int until) {
  using Tile = PageTile<kWidth, Page>;
  constexpr int kStepRows = 32 / Tile::pieces, kStepBytes = 32 * 16;
  constexpr int kPeriod = 8 / kStepRows;  // steps after which the places of pieces in their rows are the same again
  const int lane = threadIdx.x & 31, first_row = lane / Tile::pieces, piece = lane % Tile::pieces;
  uint32_t places[kPeriod];
#pragma unroll
  for (int i = 0; i < kPeriod; ++i) places[i] = to + Tile::place(first_row + i * kStepRows, piece);
  const auto* bytes = static_cast<const uint8_t*>(pages) + int64_t{t.page_row} * Tile::row_bytes + lane * 16;
  if (!whole_tiles(a)) {  // a look-up for each row
    int rows[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = lane + 32 * i;
      rows[i] = row >= from && row < until ? token_page_row(a, item, t.tile * kAttentionTile + row) : 0;
    }
#pragma unroll 1
    for (int step = 0; step < kAttentionTile / kStepRows; ++step) {
      const int row = first_row + step * kStepRows;
      const int low = __shfl_sync(0xffffffffu, rows[0], row & 31), high = __shfl_sync(0xffffffffu, rows[1], row & 31);
      if (row < from || row >= until) continue;
      ptx::cp_async_16(
          to + Tile::place(row, piece),
          static_cast<const uint8_t*>(pages) + int64_t{row < 32 ? low : high} * Tile::row_bytes + piece * 16, true);
    }
    return;
  }
  if (from == 0 && until == kAttentionTile) {
#pragma unroll
    for (int i = 0; i < kAttentionTile / kStepRows; ++i)
      ptx::cp_async_16(places[i % kPeriod] + i / kPeriod * kPeriod * kStepBytes, bytes + i * kStepBytes, true);
    return;
  }
#pragma unroll 1
  for (int first = from & ~7; first < until; first += 8)
#pragma unroll
    for (int i = 0; i < kPeriod; ++i) {
      const int row = first + first_row + i * kStepRows;
      if (row >= from && row < until)
        ptx::cp_async_16(places[i] + first * Tile::row_bytes, bytes + first * Tile::row_bytes + i * kStepBytes, true);
    }
}

// By one warp: zeros in the rows of a tile of values from `from` on. What lies there may be no number, which a
// probability of zero does not hide.
template <int kWidth, class Page>
__device__ __forceinline__ void clear_rows(const void* pages, uint32_t to, int from) {
  using Tile = PageTile<kWidth, Page>;
  const int lane = threadIdx.x & 31;
#pragma unroll 2
  for (int row = from + lane / Tile::pieces; row < kAttentionTile; row += 32 / Tile::pieces)
    ptx::cp_async_16(to + Tile::place(row, lane % Tile::pieces), pages, false);
}

// By one warp: a tile of keys or values, and the arrival on `ready`.
template <int kWidth, class Page, int kTiles>
__device__ __forceinline__ void copy_tile(const AttentionArgs& a, const TokenItem& item, const TokenTile& t,
                                          bool values, uint32_t to, uint64_t* ready) {
  const int seen = min(positions_in_pages<kTiles>(a, item) - t.tile * kAttentionTile, kAttentionTile);
  const void* pages = values ? a.values : a.keys;
  copy_rows<kWidth, Page>(a, item, t, pages, to, 0, seen);
  if (values && seen < kAttentionTile) clear_rows<kWidth, Page>(pages, to, seen);
  ptx::cp_async_arrive(ready);
}

// The row of a pair is pair * this >> 16, for so few pairs: no division where something waits for it.
__device__ __forceinline__ int rows_of_pairs(int group) { return 65536 / group + 1; }

// By one warp: the item's queries to shared memory, and the arrival on `ready`.
template <int kWidth>
__device__ __forceinline__ void copy_queries(const AttentionArgs& a, const TokenItem& item, int pair_rows, uint8_t* to,
                                             uint64_t* ready) {
  using Tile = PageTile<kWidth, bf16_t>;
  constexpr int kStepPairs = 32 / Tile::pieces;
  const int lane = threadIdx.x & 31, piece = lane % Tile::pieces, group = a.shape.group();
  const bool aligned = ((reinterpret_cast<uintptr_t>(a.q.data) | static_cast<uintptr_t>(a.q.stride) * 2) & 15) == 0;
  const auto* first = static_cast<const bf16_t*>(a.q.data) + item.first_row * a.q.stride +
                      static_cast<int64_t>(item.key_head) * group * kWidth + piece * 8;
#pragma unroll
  for (int i = 0; i < kAttentionFewRows / kStepPairs; ++i) {
    const int pair = i * kStepPairs + lane / Tile::pieces;
    const bool valid = pair < item.pairs;
    const int row = valid ? pair * pair_rows >> 16 : 0, head = valid ? pair - row * group : 0;
    const bf16_t* from = first + row * a.q.stride + head * kWidth;
    uint8_t* place = to + Tile::place(pair, piece);
    if (aligned) {
      ptx::cp_async_16(ptx::smem_address(place), from, valid);
      continue;
    }
    uint32_t v[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) v[j] = valid ? from[2 * j] | static_cast<uint32_t>(from[2 * j + 1]) << 16 : 0u;
    *reinterpret_cast<uint4*>(place) = {v[0], v[1], v[2], v[3]};
  }
  if (aligned)
    ptx::cp_async_arrive(ready);
  else
    ptx::mbarrier_arrive(ready);
}

// Asks for the norms' weights, which lie in memory and which no step writes. By one warp.
template <int kWidth>
__device__ __forceinline__ void prefetch_norms(const ProjectedHeads& h) {
  const int lane = threadIdx.x & 31;
  constexpr int kLines = kWidth / 32;  // of 128 bytes
  const float* norm = lane < kLines ? h.q_norm : h.k_norm;
  if (lane < 2 * kLines && norm != nullptr) ptx::prefetch_l1(norm + lane % kLines * 32);
}

// What comes after the tiles that a block begins with.
struct TokenRest {
  TokenCursor next;
  TokenTile tile;
  int last_item;  // of those tiles; they are in order, and their items', but for the first's, have no queries yet
  int first_item;
  int pair_rows;  // rows_of_pairs()
};

// By all warps: the barriers, the block's items by make(i), then the copies of the first tiles, of the computing warps
// one half of a tile each, and of the first item's queries. What the kernel ahead does not write is read before that
// one has finished. False: there is no tile.
template <int kWidth, class Page, int kTiles, class Make>
__device__ __forceinline__ bool begin_items(const AttentionArgs& a, uint8_t* smem, int count, TokenRest& rest,
                                            Make&& make) {
  using Shared = TokensShared<kWidth, Page, kTiles>;
  constexpr int kStages = Shared::stages, kWarps = kAttentionThreads / 32;
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  auto* items = reinterpret_cast<TokenItem*>(smem + Shared::items);
  auto& barriers = *reinterpret_cast<TokenBarriers<kStages>*>(smem + Shared::barriers);
  if (threadIdx.x == kTokenThreads - 1) barriers.init();
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kTokenThreads) items[i] = make(i);
  __syncthreads();
  TokenCursor next{0, items[0].first_tile};
  next.skip_finished(items, count);
  if (next.item >= count) {
    ptx::griddepcontrol_wait();
    return false;
  }
  rest.first_item = rest.last_item = next.item;
  TokenCursor my_place = next;  // lane i looks up the i-th tile
  for (int i = 0; i < kStages && next.item < count; ++i) {
    rest.last_item = next.item;
    next.advance(items, count);
    if (i < lane) my_place = next;
  }
  const TokenTile mine = find_tile(a, items, count, my_place);
  rest.next = next;
  rest.pair_rows = rows_of_pairs(a.shape.group());
  rest.tile = mine.of_lane(kStages);
  const auto first_tiles = [&](bool older) {
#pragma unroll 1
    for (int i = warp; i < 2 * kStages; i += kWarps) {
      const TokenTile t = mine.of_lane(i / 2);
      if (t.item < 0) return;
      const TokenItem& item = items[t.item];
      const bool values = i % 2 != 0;
      const int seen = min(positions_in_pages<kTiles>(a, item) - t.tile * kAttentionTile, kAttentionTile);
      const int old = min(max(item.context - t.tile * kAttentionTile, 0), seen);
      const void* pages = values ? a.values : a.keys;
      const uint32_t to =
          ptx::smem_address(smem + (values ? Shared::values : Shared::keys) + i / 2 * Shared::tile_bytes);
      if (!older && old == seen) continue;
      copy_rows<kWidth, Page>(a, item, t, pages, to, older ? 0 : old, older ? old : seen);
      if (older && values && seen < kAttentionTile) clear_rows<kWidth, Page>(pages, to, seen);
      if (!older || old == seen) ptx::cp_async_arrive((values ? barriers.values_ready : barriers.keys_ready) + i / 2);
    }
  };
  if (warp < kWarps)
    first_tiles(true);
  else if (comes_projected<kTiles>(a))
    prefetch_norms<kWidth>(a.projected);
  ptx::griddepcontrol_wait();
  if (warp == kWarps)
    copy_queries<kWidth>(a, items[rest.first_item], rest.pair_rows, smem + Shared::queries, &barriers.queries_ready);
  else
    first_tiles(false);
  return true;
}

// The copying warp: the rest of the tiles as their places become free, and the items' queries. Queries come after
// their item's first tile: their place is free when the item before has begun, and waiting for that would hold up the
// tiles.
template <int kWidth, class Page, int kTiles>
__device__ __forceinline__ void copy_items(const AttentionArgs& a, uint8_t* smem, int count, TokenRest rest) {
  using Shared = TokensShared<kWidth, Page, kTiles>;
  constexpr int kStages = Shared::stages;
  auto* items = reinterpret_cast<const TokenItem*>(smem + Shared::items);
  auto& barriers = *reinterpret_cast<TokenBarriers<kStages>*>(smem + Shared::barriers);
  const uint32_t keys = ptx::smem_address(smem + Shared::keys), values = ptx::smem_address(smem + Shared::values);
  int stage = 0, item_of_queries = rest.first_item, last_item = rest.last_item;
  uint32_t read = 0, queries_read = 0;
#pragma unroll 1
  while (true) {
    while (item_of_queries < last_item) {
      const TokenItem& item = items[++item_of_queries];
      if (item.first_tile >= item.last_tile) continue;
      ptx::mbarrier_wait(&barriers.queries_read, queries_read);
      queries_read ^= 1;
      copy_queries<kWidth>(a, item, rest.pair_rows, smem + Shared::queries, &barriers.queries_ready);
    }
    const TokenTile t = rest.tile;
    if (t.item < 0) break;
    rest.next.advance(items, count);
    rest.tile = find_tile(a, items, count, rest.next);  // its block is on its way meanwhile
    const TokenItem& item = items[t.item];
    ptx::mbarrier_wait(barriers.keys_read + stage, read);
    copy_tile<kWidth, Page, kTiles>(a, item, t, false, keys + stage * Shared::tile_bytes, barriers.keys_ready + stage);
    ptx::mbarrier_wait(barriers.values_read + stage, read);
    copy_tile<kWidth, Page, kTiles>(a, item, t, true, values + stage * Shared::tile_bytes,
                                    barriers.values_ready + stage);
    last_item = t.item;
    if (++stage == kStages) stage = 0, read ^= 1;
  }
  ptx::cp_async_commit();
  ptx::cp_async_wait<0>();  // none is left behind by a thread that has ended
}

}  // namespace sluice::sm90
