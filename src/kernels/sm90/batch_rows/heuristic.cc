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
  return cuts_m_tiles(shape.operand) && c.parts == 1 && among(c.tile, kChainTiles) && among(c.group, kChainGroups) &&
         among(c.blocks, kChainBlocks) && among(c.m_parts, kChainMParts) &&
         chain_ring(shape.operand, c.tile, c.blocks, c.m_parts, c.group).stages >= kLeastChainStages;
}

double chain_us(const WeightShape& shape, int64_t rows, const BatchRoom& room, const BatchRowsChoice& c) {
  // The tensor cores take as long for a few rows of x as for these.
  constexpr int kLeastRows = 32;
  const double row_tiles = static_cast<double>(ceil_div<int64_t>(rows, c.tile)), k_blocks = shape.k_blocks(),
               tasks = shape.m_tiles() * c.m_parts * row_tiles;
  const double busiest = std::ceil(tasks / room.multiprocessors),
               in_turn = std::ceil(tasks / (room.multiprocessors * c.blocks));
  const double multiply = k_blocks * std::max(busiest * 0.5 * kBatchKBlockUs * std::max(c.tile, kLeastRows) / 256.0,
                                              in_turn * kChainKBlockUs);
  const double bytes = static_cast<double>(shape.bytes()), x_bytes = k_blocks * 128.0 * c.tile;
  // Of the device, or of the multiprocessor that has the most of it.
  const double memory =
      std::max(bytes / kBatchMemoryBytes, busiest * bytes / (shape.m_tiles() * c.m_parts) / kChainStreamBytes);
  const double cache = (bytes * row_tiles + tasks * x_bytes) / kBatchCacheBytes;
  const double products = std::sqrt(multiply * multiply + memory * memory + cache * cache);
  return kBatchStartUs + products + busiest * 512.0 * c.tile / c.m_parts / kBatchStoreBytes;
}

}  // namespace

bool batch_rows_possible(const WeightShape& shape, const BatchRowsChoice& c) {
  if (c.group != 1) return chain_possible(shape, c);
  const bool tile = std::any_of(std::begin(kBatchTiles), std::end(kBatchTiles),
                                [&](const BatchTileSize& t) { return t.rows == c.tile && t.blocks == c.blocks; });
  return tile && batch_rows_run(shape.operand) && c.parts >= 1 &&
         c.parts <= batch_rows_most_parts(shape.operand, c.tile) &&
         ceil_div(shape.k_blocks(), k_blocks_per_copy(shape.operand)) >= c.parts &&
         (c.m_parts == 1 ||
          (c.parts == 1 && cuts_m_tiles(shape.operand) && (c.m_parts == 2 || c.m_parts == kMaxMParts)));
}

double batch_rows_us(const WeightShape& shape, int64_t rows, const BatchRoom& room, const BatchRowsChoice& c) {
  if (c.group != 1) return chain_us(shape, rows, room, c);
  const WeightOperand op = shape.operand;
  const int copy = k_blocks_per_copy(op);
  const double row_tiles = static_cast<double>(ceil_div<int64_t>(rows, c.tile)),
               tasks = shape.m_tiles() * c.m_parts * row_tiles;
  const double waves = std::ceil(tasks / std::max(1, room.clusters[c.blocks - 1][c.parts - 1]));
  // Tasks of the busiest multiprocessor: the blocks of a cluster fill one before they take the next.
  const double busiest = c.parts == 1 ? std::ceil(tasks / room.multiprocessors) : waves * c.blocks;
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
  BatchRowsChoice best;
  double best_us = 0;
  const auto consider = [&](const BatchRowsChoice& c) {
    if (!batch_rows_possible(shape, c)) return;
    const double us = batch_rows_us(shape, rows, room, c);
    if (best.tile == 0 || us < best_us) best = c, best_us = us;
  };
  if (k_parts == 1 && cuts_m_tiles(shape.operand) && rows <= kMostChainRows) {
    for (const int tile : kChainTiles)
      for (const int group : kChainGroups)
        for (const int blocks : kChainBlocks)
          for (const int m_parts : kChainMParts)
            if (rows <= tile) consider({tile, blocks, 1, m_parts, group});
    return best;
  }
  for (const BatchTileSize& tile : kBatchTiles)
    for (int parts = std::max(k_parts, 1); parts <= (k_parts > 0 ? k_parts : kMaxBatchCluster); ++parts)
      // Where K may be cut, M-tiles are not: the model was fitted to these.
      for (int m_parts = 1; m_parts <= (k_parts == 1 ? kMaxMParts : 1); m_parts *= 2)
        consider({tile.rows, tile.blocks, parts, m_parts});
  return best;
}

int deterministic_parts(const WeightShape& shape) {
  constexpr int kNarrowMTiles = 2, kLeastCopies = 2;  // copies of weights along K of a part
  if (!batch_rows_run(shape.operand) || shape.m_tiles() > kNarrowMTiles) return 1;
  return std::clamp(ceil_div(shape.k_blocks(), k_blocks_per_copy(shape.operand)) / kLeastCopies, 1, kMaxBatchCluster);
}

}  // namespace sluice::sm90
