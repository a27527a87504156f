// SPDX-License-Identifier: Apache-2.0
#include "kernels/sm90/batch_rows/heuristic.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "kernels/sm90/tuning.h"

namespace sluice::sm90 {

using namespace tuning;

namespace {

bool among(int value, const auto& values) {
  return std::find(std::begin(values), std::end(values), value) != std::end(values);
}

bool chain_possible(const WeightShape& shape, const BatchRowsChoice& c) {
  return cuts_m_tiles(shape.operand) && c.parts == 1 && c.blocks == 1 && among(c.tile, kChainTiles) &&
         among(c.m_parts, kChainMParts) && (!c.leaves_room || c.tile <= kMostSharedChainRows) &&
         ring_of(shape.operand, c).stages >= kLeastChainStages;
}

double chain_us(const WeightShape& shape, int64_t rows, const BatchRoom& room, const BatchRowsChoice& c) {
  const double row_tiles = static_cast<double>(ceil_div<int64_t>(rows, c.tile)), k_blocks = shape.k_blocks(),
               tasks = shape.m_tiles() * c.m_parts * row_tiles;
  const double blocks = std::min<double>(tasks, room.multiprocessors), busiest = std::ceil(tasks / blocks);
  const double multiply = busiest * k_blocks * kChainKBlockUs;
  // Into the shared memory of the block that has the most tasks.
  const double stream = busiest * k_blocks * (k_block_bytes(shape.operand) / c.m_parts + 128.0 * c.tile) /
                        (c.tile < 64 ? kChainStreamBytes : kChainStreamBytes64);
  const double results = 2.0 * kMTileRows * shape.m_tiles() * c.tile * row_tiles;
  double memory = (static_cast<double>(shape.bytes()) + results) / kChainMemoryBytes;
  // In the last turn of several some blocks have no task.
  if (busiest > 1) memory *= 1 + kChainUneven * (busiest * room.multiprocessors / tasks - 1);
  // They overlap, the better the more they differ.
  const auto fourth = [](double v) { return v * v * v * v; };
  return kChainStartUs + std::sqrt(std::sqrt(fourth(multiply) + fourth(stream) + fourth(memory))) +
         blocks * kChainBlockUs;
}

// Routers.
bool narrow(const WeightShape& shape) { return shape.m_tiles() <= 2; }
// A chain of several tiles of few rows each, from where the kernel for few rows ends. The sums are those of one tile.
bool is_short_router(const WeightShape& shape, int64_t rows, int k_parts) {
  return narrow(shape) && shape.operand == WeightOperand::bf16 && shape.k_blocks() <= kShortRouterKBlocks &&
         k_parts == 0 && rows > kMaxFewRows && rows <= kMostChainRows;
}
// Whether K and M-tiles may both be cut.
bool cuts_both(const WeightShape& shape, int64_t rows) {
  return narrow(shape) && shape.k_blocks() >= kLongRouterKBlocks && rows <= kMostLongRouterRows;
}

// The quickest of those that are considered.
struct Quickest {
  const WeightShape& shape;
  int64_t rows;
  const BatchRoom& room;
  BatchRowsChoice choice{};
  double us = 0;

  void consider(const BatchRowsChoice& c) {
    if (!batch_rows_possible(shape, c)) return;
    const double expected = batch_rows_us(shape, rows, room, c);
    if (choice.tile == 0 || expected < us) choice = c, us = expected;
  }
};

// Whether every task has a multiprocessor of its own.
bool all_at_once(const WeightShape& shape, int m_parts, int row_tiles, const BatchRoom& room) {
  return shape.m_tiles() * m_parts * row_tiles <= room.multiprocessors;
}

// More than kFewChainRows rows of FP8 as two tiles of that many: the tasks of an M-tile, 0 where one tile is quicker.
// Before a block may read x it fetches as many of its weights as its ring holds beside x: of o of Qwen3 a half beside
// 64 rows, three quarters beside 32. BF16 keeps one tile. With 64 sequences two tiles of o (48 layers) took 0.16 ms per
// step less in a model of BF16, 0.14 and 0.05 ms more where experts are NVFP4 and MXFP4 (H200).
int m_parts_in_two_tiles(const WeightShape& shape, int64_t rows, const BatchRoom& room) {
  if (!is_fp8(shape.operand) || rows <= kFewChainRows) return 0;
  for (const int m_parts : {kChainMParts[1], kChainMParts[0]})
    if (all_at_once(shape, m_parts, 2, room)) return m_parts;
  return 0;
}

Quickest quickest_chain(const WeightShape& shape, int64_t rows, const BatchRoom& room) {
  Quickest q{shape, rows, room};
  if (const int m_parts = m_parts_in_two_tiles(shape, rows, room); m_parts > 0) {
    q.consider({kFewChainRows, 1, 1, m_parts, true});
    return q;
  }
  // Calls one after the other share the multiprocessors, so that few tasks look quick (o of Qwen3 with 8 rows 6.3 us in
  // 32 tasks, 6.6 in 64). In a model's step they do not: with as many tasks as have a multiprocessor each, decoding 8
  // sequences is 1.7 % quicker in BF16, 3.6 % with NVFP4 experts.
  const bool most_tasks = all_at_once(shape, kChainMParts[1], 1, room);
  for (const int tile : kChainTiles)
    for (const int m_parts : kChainMParts)
      if (rows <= tile && (m_parts == kChainMParts[1] || !most_tasks)) q.consider({tile, 1, 1, m_parts, true});
  return q;
}
Quickest quickest_in_parts(const WeightShape& shape, int64_t rows, const BatchRoom& room, int k_parts) {
  Quickest q{shape, rows, room};
  for (const BatchTileSize& tile : kBatchTiles)
    for (int parts = std::max(k_parts, 1); parts <= (k_parts > 0 ? k_parts : kMaxBatchCluster); ++parts) {
      if (k_parts == 0 && parts == kSlowParts) continue;
      // Where K may be cut, M-tiles are not, but for long routers: the model was fitted to these.
      for (int m_parts = 1; m_parts <= (k_parts == 1 || cuts_both(shape, rows) ? kMaxMParts : 1); m_parts *= 2)
        q.consider({tile.rows, tile.blocks, parts, m_parts});
    }
  return q;
}

bool is_chain(const WeightShape& shape, int64_t rows, const BatchRoom& room, int k_parts) {
  if (!cuts_m_tiles(shape.operand) || rows > kMostChainRows || k_parts > 1) return false;
  if (k_parts == 1) return true;
  const int most = shape.operand == WeightOperand::fp8 ? kMostFullFp8ChainMTiles : kMostFullChainMTiles;
  if (rows > kFewChainRows && shape.m_tiles() > most) return false;
  // The smallest matrix that was timed beside the kernel for few rows in parts of K: 6.3 us and 6.7 (o of Qwen3, H200).
  constexpr int kLeastMTiles = 16;
  if (shape.m_tiles() < kLeastMTiles) return false;
  const Quickest other = quickest_in_parts(shape, kFewChainRows, room, k_parts);
  return other.choice.parts == 1 || quickest_chain(shape, kFewChainRows, room).us <= other.us;
}

}  // namespace

bool batch_rows_possible(const WeightShape& shape, const BatchRowsChoice& c) {
  if (c.chain) return chain_possible(shape, c);
  const bool tile = std::any_of(std::begin(kBatchTiles), std::end(kBatchTiles),
                                [&](const BatchTileSize& t) { return t.rows == c.tile && t.blocks == c.blocks; });
  return tile && !c.leaves_room && has_batch_tile(shape.operand, {c.tile, c.blocks}) && c.parts >= 1 &&
         c.parts <= batch_rows_most_parts(shape.operand, c.tile) &&
         ceil_div(shape.k_blocks(), k_blocks_per_copy(shape.operand)) >= c.parts &&
         (c.m_parts == 1 || (cuts_m_tiles(shape.operand) && (c.m_parts == 2 || c.m_parts == kMaxMParts) &&
                             (c.parts == 1 || narrow(shape))));
}

double batch_rows_us(const WeightShape& shape, int64_t rows, const BatchRoom& room, const BatchRowsChoice& c) {
  if (c.chain) return chain_us(shape, rows, room, c);
  const WeightOperand op = shape.operand;
  const int copy = k_blocks_per_copy(op);
  const double row_tiles = static_cast<double>(ceil_div<int64_t>(rows, c.tile)),
               tasks = shape.m_tiles() * c.m_parts * row_tiles;
  const double waves = std::ceil(tasks / std::max(1, room.clusters[c.blocks - 1][c.parts - 1]));
  // Tasks of the busiest multiprocessor: the blocks of a cluster fill one before they take the next. So do single
  // blocks of packed weights where two fit ([10304, 2688], NVFP4, 32 rows: 20.8 us in one part of K, 14.1 in two).
  const double whole = std::ceil(tasks / room.multiprocessors);
  const double busiest = c.parts > 1   ? waves * c.blocks
                         : decodes(op) ? std::max(whole, std::min<double>(tasks, c.blocks))
                                       : whole;
  const double k_blocks = ceil_div(ceil_div(shape.k_blocks(), copy), c.parts) * copy;  // of the longest part
  // A part of an M-tile is multiplied by one warpgroup of the two.
  const double share = c.m_parts > 1 ? 0.5 : 1.0;
  const double multiply =
      busiest * k_blocks * (share * kBatchKBlockUs * c.tile / 256.0 + (decodes(op) ? kBatchDecodeUs : 0));
  const double bytes = static_cast<double>(shape.bytes());
  const double memory = bytes / kBatchMemoryBytes;
  const double cache = (bytes * row_tiles + tasks * shape.k_blocks() * 128.0 * c.tile) / kBatchCacheBytes;
  // They overlap, the better the more they differ.
  const double products = std::sqrt(multiply * multiply + memory * memory + cache * cache);
  const double sums = 512.0 * c.tile / c.m_parts;  // bytes of a task
  if (c.parts == 1) return kBatchStartUs + products + busiest * sums / kBatchStoreBytes;
  const double part = 1.0 / c.parts;
  const double exchange = kBatchExchangeUs + sums * ((1 - part) / kBatchExchangeBytes + part / kBatchStoreBytes);
  return kBatchStartUs + products + waves * exchange + (waves - 1) * kBatchWaveUs;
}

BatchRowsChoice choose_batch_rows(const WeightShape& shape, int64_t rows, const BatchRoom& room, int k_parts) {
  if (is_short_router(shape, rows, k_parts))
    return {rows <= kFewChainRows ? kChainTiles[0] : kChainTiles[1], 1, 1, kChainMParts[1], true};
  return is_chain(shape, rows, room, k_parts) ? quickest_chain(shape, rows, room).choice
                                              : quickest_in_parts(shape, rows, room, k_parts).choice;
}

int deterministic_parts(const WeightShape& shape) {
  constexpr int kLeastCopies = 2;  // of weights along K, of a part
  if (!narrow(shape)) return 1;
  return std::clamp(ceil_div(shape.k_blocks(), k_blocks_per_copy(shape.operand)) / kLeastCopies, 1, kMaxBatchCluster);
}

}  // namespace sluice::sm90
