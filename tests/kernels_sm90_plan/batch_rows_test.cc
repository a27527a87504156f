// SPDX-License-Identifier: Apache-2.0
// Tiles, parts of K and the shared memory of the product of a batch of rows.
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "kernels/sm90/batch_rows/config.h"
#include "kernels/sm90/tuning.h"
#include "tests/kernels_sm90_plan/operands.h"

namespace sluice::sm90 {
namespace {

// Of a device whose clusters lie in groups of `group` multiprocessors.
BatchRoom batch_room(int multiprocessors, int group) {
  BatchRoom room;
  room.multiprocessors = multiprocessors;
  const int whole = multiprocessors / group, rest = multiprocessors % group;
  for (int blocks = 1; blocks <= 2; ++blocks)
    for (int size = 1; size <= kMaxBatchCluster; ++size)
      room.clusters[blocks - 1][size - 1] = whole * (group * blocks / size) + rest * blocks / size;
  return room;
}

std::vector<BatchRowsChoice> chains_of(const WeightShape& s) {
  std::vector<BatchRowsChoice> out;
  for (const int tile : kChainTiles)
    for (const int m_parts : kChainMParts)
      for (const bool leaves_room : {false, true}) {
        const BatchRowsChoice c{tile, 1, 1, m_parts, true, leaves_room};
        if (batch_rows_possible(s, c)) out.push_back(c);
      }
  return out;
}

TEST(BatchRowsPlan, ChoicesArePossibleAndTheQuickest) {
  for (const WeightOperand op : kOperands)
    for (const int64_t n : {1, 128, 2048, 5120, 151936})
      for (const int64_t k : {1, 64, 513, 2048, 16384})
        for (const int multiprocessors : {1, 78, 132})
          for (const int64_t rows : {1, 16, 17, 64, 129, 256}) {
            const WeightShape s{op, 1, n, k, false, 0};
            const BatchRoom room = batch_room(multiprocessors, 16);
            for (const bool one_part : {false, true}) {
              const BatchRowsChoice c = choose_batch_rows(s, rows, room, one_part ? 1 : 0);
              ASSERT_TRUE(batch_rows_possible(s, c));
              ASSERT_LE(c.parts, kMaxBatchCluster);
              ASSERT_NE(c.parts, kSlowParts);
              ASSERT_LE(c.parts, copies(s));
              ASSERT_TRUE(!one_part || c.parts == 1);
              const double us = batch_rows_us(s, rows, room, c);
              if (one_part) {
                ASSERT_EQ(c.chain, cuts_m_tiles(op) && rows <= kMostChainRows);
              }
              ASSERT_TRUE(!c.chain || rows <= kMostChainRows);
              if (c.chain && rows > c.tile) continue;  // a short router, or two tiles: not chosen by cost
              if (c.chain) {
                for (const BatchRowsChoice& other : chains_of(s)) {
                  if (rows > other.tile || other.m_parts < c.m_parts) continue;
                  ASSERT_LE(us, batch_rows_us(s, rows, room, other));
                }
                continue;
              }
              for (const BatchTileSize& t : kBatchTiles) {
                for (const int m_parts : {1, 2, 4}) {
                  const BatchRowsChoice other{t.rows, t.blocks, c.parts, m_parts};
                  if (!batch_rows_possible(s, other) || (m_parts > 1 && !one_part)) continue;
                  ASSERT_LE(us, batch_rows_us(s, rows, room, other));
                }
              }
            }
          }
}

// Not less than the memory and the tensor cores ask for.
TEST(BatchRowsPlan, ExpectedTimesHaveAFloor) {
  for (const int64_t n : {128, 2048, 5120, 151936})
    for (const int64_t rows : {17, 64, 256}) {
      const WeightShape s{WeightOperand::bf16, 1, n, 2048, false, 0};
      const BatchRowsChoice c = choose_batch_rows(s, rows, batch_room(132, 16), 0);
      const double us = batch_rows_us(s, rows, batch_room(132, 16), c);
      EXPECT_GE(us, static_cast<double>(s.bytes()) / (c.chain ? tuning::kChainMemoryBytes : tuning::kBatchMemoryBytes));
      EXPECT_GE(us, 2.0 * static_cast<double>(n * rows) * 2048 / 990e6);
      EXPECT_LE(us, 20 + 2 * static_cast<double>(s.bytes()) / tuning::kBatchMemoryBytes);
    }
}

TEST(BatchRowsPlan, ImpossibleChoices) {
  const WeightShape s{WeightOperand::bf16, 1, 256, 256, false, 0};  // four k-blocks
  EXPECT_TRUE(batch_rows_possible(s, {64, 2, 4}));
  EXPECT_FALSE(batch_rows_possible(s, {64, 2, 5})) << "a part without k-blocks";
  EXPECT_FALSE(batch_rows_possible(s, {64, 2, 0}));
  EXPECT_FALSE(batch_rows_possible(s, {0, 1, 1}));
  EXPECT_FALSE(batch_rows_possible(s, {48, 2, 1}));
  EXPECT_FALSE(batch_rows_possible(s, {256, 2, 1})) << "two blocks of 256 rows";
  EXPECT_FALSE(batch_rows_possible({WeightOperand::bf16, 1, 256, 4096, false, 0}, {256, 1, 4})) << "too many sums";
  EXPECT_TRUE(batch_rows_possible({WeightOperand::fp8_block, 1, 256, 256, false, 0}, {64, 2, 1}));
  EXPECT_FALSE(batch_rows_possible({WeightOperand::fp8_block_f32, 1, 256, 256, false, 0}, {64, 2, 1}))
      << "no registers";
  EXPECT_FALSE(batch_rows_possible({WeightOperand::fp8_block_f32, 1, 256, 256, false, 0}, {256, 1, 1}))
      << "no registers";
  EXPECT_TRUE(batch_rows_possible(s, {8, 1, 1, 4, true}));
  EXPECT_FALSE(batch_rows_possible(s, {8, 1, 1, 4})) << "a tile of chains alone";
  EXPECT_FALSE(batch_rows_possible(s, {128, 1, 1, 4, true})) << "no tile of chains";
  EXPECT_FALSE(batch_rows_possible(s, {8, 1, 2, 4, true})) << "two parts of K";
  EXPECT_FALSE(batch_rows_possible(s, {8, 1, 1, 1, true})) << "two warpgroups";
  EXPECT_FALSE(batch_rows_possible(s, {8, 2, 1, 4, true})) << "two blocks per multiprocessor";
  EXPECT_FALSE(batch_rows_possible({WeightOperand::nvfp4, 1, 256, 256, false, 0}, {8, 1, 1, 4, true}));
}

// One or a few rows of the products of a layer, with K in one part.
TEST(BatchRowsPlan, DeterministicProductsOfFewRowsAreChains) {
  for (const WeightOperand op : {WeightOperand::bf16, WeightOperand::fp8})
    for (const auto& [n, k] : {std::pair<int64_t, int64_t>{5120, 2048}, {2048, 4096}, {2688, 4096}, {7168, 16384}})
      for (const int64_t rows : {1, 8, 16, 32}) {
        const WeightShape s{op, 1, n, k, false, 0};
        const BatchRowsChoice c = choose_batch_rows(s, rows, batch_room(132, 16), 1);
        EXPECT_TRUE(c.chain) << n << " " << k << " " << rows;
        EXPECT_EQ(c.tile, std::max<int64_t>(rows, 8));
      }
}

// Where K may be in any number of parts: the products of a layer are chains, routers and other matrices of few M-tiles
// are cut.
TEST(BatchRowsPlan, ChainsBesideParts) {
  const BatchRoom room = batch_room(132, 16);
  const auto chosen = [&](int64_t n, int64_t k, int64_t rows) {
    return choose_batch_rows({WeightOperand::bf16, 1, n, k, false, 0}, rows, room, 0);
  };
  for (const auto& [n, k] : {std::pair<int64_t, int64_t>{5120, 2048},
                             {2048, 4096},
                             {151936, 2048},
                             {10304, 2688},
                             {2688, 4096},
                             {2112, 7168},
                             {24576, 1536},
                             {7168, 16384}})
    for (const int64_t rows : {1, 16, 17, 32}) EXPECT_TRUE(chosen(n, k, rows).chain) << n << " " << k << " " << rows;
  for (const int64_t rows : {33, 48, 49, 64}) {
    EXPECT_TRUE(chosen(5120, 2048, rows).chain);
    EXPECT_EQ(chosen(5120, 2048, rows).tile, rows <= 48 ? 48 : 64);
  }
  const auto chosen_fp8 = [&](int64_t n, int64_t k, int64_t rows) {
    return choose_batch_rows({WeightOperand::fp8, 1, n, k, false, 0}, rows, room, 0);
  };
  for (const int64_t rows : {33, 64}) {
    EXPECT_TRUE(chosen_fp8(5120, 2048, rows).chain);
    EXPECT_TRUE(chosen_fp8(7168, 16384, rows).chain);
    EXPECT_FALSE(chosen_fp8(10304, 2688, rows).chain);
    EXPECT_FALSE(chosen_fp8(32768, 512, rows).chain);
  }
  EXPECT_FALSE(chosen(151936, 2048, 64).chain);
  for (const auto& [n, k] :
       {std::pair<int64_t, int64_t>{128, 2688}, {256, 7168}, {576, 7168}, {1024, 4096}, {1920, 2048}})
    for (const int64_t rows : {1, 16, 17, 32}) EXPECT_GT(chosen(n, k, rows).parts, 1) << n << " " << k << " " << rows;
}

// In FP8, 33 to 64 rows of few M-tiles are two tiles where the tasks of both have a multiprocessor each.
TEST(BatchRowsPlan, ChainsOfTwoTiles) {
  const BatchRoom room = batch_room(132, 16);
  const BatchRowsChoice four{32, 1, 1, 4, true}, two{32, 1, 1, 2, true};
  for (const int parts : {0, 1})
    for (const WeightOperand op : {WeightOperand::bf16, WeightOperand::fp8, WeightOperand::fp8_block}) {
      const auto chosen = [&](int64_t n, int64_t k, int64_t rows) {
        return choose_batch_rows({op, 1, n, k, false, 0}, rows, room, parts);
      };
      const bool one_tile = op == WeightOperand::bf16;
      for (const int64_t rows : {33, 48, 49, 64}) {
        EXPECT_EQ(chosen(2048, 4096, rows) == four, !one_tile) << rows;
        EXPECT_EQ(chosen(2688, 4096, rows) == two, !one_tile) << rows;
        EXPECT_EQ(chosen(5120, 2048, rows).tile, rows <= 48 ? 48 : 64) << rows;
        if (one_tile) EXPECT_EQ(chosen(2048, 4096, rows).tile, rows <= 48 ? 48 : 64) << rows;
      }
      EXPECT_EQ(chosen(2048, 4096, 32).tile, 32);
    }
}

// Short routers are chains of several tiles; of long ones M-tiles are cut as well as K, up to as many rows as were
// quicker so.
TEST(BatchRowsPlan, Routers) {
  const BatchRoom room = batch_room(132, 16);
  const auto chosen = [&](int64_t n, int64_t k, int64_t rows) {
    return choose_batch_rows({WeightOperand::bf16, 1, n, k, false, 0}, rows, room, 0);
  };
  EXPECT_GT(chosen(128, 2048, 16).parts, 1);
  EXPECT_EQ(chosen(128, 2048, 17), (BatchRowsChoice{8, 1, 1, 4, true}));
  EXPECT_EQ(chosen(128, 2048, 64), (BatchRowsChoice{16, 1, 1, 4, true}));
  EXPECT_GT(chosen(128, 2048, 65).parts, 1);
  for (const int64_t rows : {24, 128}) {
    EXPECT_GT(chosen(256, 7168, rows).parts, 1);
    EXPECT_GT(chosen(256, 7168, rows).m_parts, 1);
  }
  EXPECT_EQ(chosen(256, 7168, 256).m_parts, 1);
  EXPECT_EQ(chosen(128, 2688, 64).m_parts, 1);
}

// Steps are padded by less than 16 rows, to a multiple of 8 or 16: the order of sums is the same for all rows of 16
// that follow a multiple of 16, and for all up to 32 that are a chain, but for routers, which have few M-tiles.
TEST(BatchRowsPlan, PaddingKeepsTheOrderOfSums) {
  for (const WeightOperand op : kOperands)
    for (const int64_t n : {100, 300, 1024, 2048, 5120, 24576})
      for (const int64_t k : {512, 2048, 7168}) {
        const WeightShape s{op, 1, n, k, false, 0};
        const BatchRoom room = batch_room(132, 16);
        for (int64_t rows = 1; rows <= kMaxBatchRows; ++rows) {
          const int64_t padded = round_up<int64_t>(rows, rows <= kFewChainRows && n > 256 ? kFewChainRows : 16);
          const BatchRowsChoice c = choose_batch_rows(s, rows, room, 0), with = choose_batch_rows(s, padded, room, 0);
          ASSERT_EQ(c.chain, with.chain) << rows;
          ASSERT_EQ(c.parts, with.parts) << rows;
        }
      }
}

// Tasks of an M-tile that were the quickest in docs/kernels/sm90_batch_rows.md by more than 3 %, and for matrices of
// few M-tiles those that have a multiprocessor each.
TEST(BatchRowsPlan, ChainsThatWereMeasured) {
  struct Cell {
    int64_t n, k, rows;
    int m_parts;
  };
  for (const Cell& c : {Cell{5120, 2048, 1, 2},
                        {5120, 2048, 32, 2},
                        {2048, 4096, 1, 4},
                        {2048, 4096, 32, 4},
                        {10304, 2688, 16, 4},
                        {2112, 7168, 32, 4},
                        {24576, 1536, 32, 2},
                        {7168, 16384, 32, 2},
                        {5120, 2048, 64, 2},
                        {2688, 4096, 64, 4},
                        {3712, 2688, 64, 4}})
    EXPECT_EQ(choose_batch_rows({WeightOperand::bf16, 1, c.n, c.k, false, 0}, c.rows, batch_room(132, 16), 1).m_parts,
              c.m_parts)
        << c.n << " " << c.k << " " << c.rows;
}

// Rings of chains: swizzled stages, what the tensor cores read, and what a multiprocessor has.
TEST(BatchRowsPlan, ChainRings) {
  for (const WeightOperand op : {WeightOperand::bf16, WeightOperand::fp8, WeightOperand::fp8_block}) {
    const auto chains = chains_of({op, 1, 256, 4096, false, 0});
    EXPECT_EQ(chains.size(), (std::size(kChainTiles) + 1) * std::size(kChainMParts)) << "one tile can leave room";
    for (const BatchRowsChoice& c : chains) {
      const ChainRing r = ring_of(op, c);
      EXPECT_EQ(r.w_share * c.m_parts, k_block_bytes(op));
      EXPECT_EQ(r.w_stage, kChainGroup * r.w_share);
      EXPECT_EQ(r.x_stage, kChainGroup * c.tile * 128);
      EXPECT_EQ(kChainBarrierBytes % 1024, 0);
      EXPECT_EQ(r.w_share % 1024, 0);
      EXPECT_EQ(r.x_stage / kChainGroup % 1024, 0);
      EXPECT_GE(r.stages, kLeastChainStages);
      EXPECT_LE(r.stages, kMostChainStages);
      EXPECT_LE(r.smem_bytes(), c.leaves_room ? kSharedChainSmem : kMostChainSmem);
      const int last = kChainBarrierBytes + r.stages * r.x_stage + (r.stages * kChainGroup - 1) * r.w_share;
      EXPECT_LE(last + 64 * 128, kChainBarrierBytes + r.ring_bytes()) << "64 weight rows of the last k-block";
      EXPECT_EQ((kChainBarrierBytes + r.ring_bytes()) % 16, 0);
      EXPECT_EQ(r.scale_stage, kChainGroup * scale_floats(op, c.tile));
    }
  }
}

// A group that is not whole counts for the clusters that fit in it.
TEST(BatchRowsPlan, Room) {
  const BatchRoom room = batch_room(132, 16);
  EXPECT_EQ(room.clusters[0][0], 132);
  EXPECT_EQ(room.clusters[1][0], 264);
  EXPECT_EQ(room.clusters[0][2], 8 * 5 + 1);
  EXPECT_EQ(room.clusters[1][4], 8 * 6 + 1);
  EXPECT_EQ(room.clusters[0][7], 16);
}

TEST(BatchRowsPlan, PartsOfDeterministicProducts) {
  const auto parts = [](int64_t n, int64_t k, WeightOperand op = WeightOperand::bf16) {
    return deterministic_parts({op, 1, n, k, false, 0});
  };
  EXPECT_EQ(parts(128, 2048), 8);
  EXPECT_EQ(parts(256, 7168), 8);  // DeepSeek-V3's router
  EXPECT_EQ(parts(257, 7168), 1);
  EXPECT_EQ(parts(128, 480), 4);  // two k-blocks each
  EXPECT_EQ(parts(128, 64), 1);
  for (const int64_t k : {256, 1000, 7168})
    for (const int64_t rows : {1, 100, 256}) {
      const WeightShape shape{WeightOperand::bf16, 1, 100, k, false, 0};
      const BatchRowsChoice c = choose_batch_rows(shape, rows, batch_room(132, 16), deterministic_parts(shape));
      EXPECT_EQ(c.parts, deterministic_parts(shape));
      EXPECT_TRUE(batch_rows_possible(shape, c));
    }
}

template <class T>
void check_tile() {
  static_assert(T::blocks_per_sm * (T::smem_bytes + 1024) <= 233472);
  static_assert(T::x_stage % 1024 == 0);  // swizzled stages
  // What Little's law asks for: 4.3 TB/s times a microsecond, over 132 multiprocessors.
  EXPECT_GE(T::blocks_per_sm * T::w_stages(1) * T::w_bytes, 32 * 1024) << static_cast<int>(T::op) << " " << T::rows;
  for (int m_parts = 1; m_parts <= (cuts_m_tiles(T::op) ? kMaxMParts : 1); m_parts *= 2) {
    EXPECT_EQ(T::w_stage(m_parts) % 1024, 0);
    EXPECT_LE(T::w_stages(m_parts), T::most_w_stages);
    EXPECT_LE(T::x_stages(m_parts), T::most_x_stages);
    // 64 weight rows are read from every stage of BF16 and FP8.
    const int last = T::x_stages(m_parts) * T::x_stage + (T::w_stages(m_parts) - 1) * T::w_stage(m_parts);
    EXPECT_LE(last + (cuts_m_tiles(T::op) ? std::max(8192, T::w_stage(m_parts)) : T::w_stage(1)), T::ring_bytes);
  }
  for (int m_parts = 1; m_parts <= kMaxMParts; m_parts *= 2)
    EXPECT_LE(T::x_stages(m_parts) * T::scale_stage * 4, T::smem_bytes - T::ring_bytes - 512 - T::rows * 4);
  // Sums of all parts of K lie where the rings were, however rows are dealt to the parts.
  for (int parts = 2; parts <= batch_rows_most_parts(T::op, T::rows); ++parts)
    EXPECT_LE((T::rows + (parts - 1) * ceil_div(T::rows, parts)) * kSumPitch, T::ring_bytes) << T::rows;
}
template <WeightOperand op>
void check_tiles() {
  const auto check = [&]<BatchTileSize t>() {
    if constexpr (has_batch_tile(op, t)) check_tile<BatchTile<op, t.rows, t.blocks>>();
  };
  [&]<size_t... i>(std::index_sequence<i...>) { (check.template operator()<kBatchTiles[i]>(), ...); }
  (std::make_index_sequence<std::size(kBatchTiles)>{});
}
TEST(BatchRowsPlan, SharedMemory) {
  check_tiles<WeightOperand::bf16>();
  check_tiles<WeightOperand::fp8>();
  check_tiles<WeightOperand::fp8_block>();
  check_tiles<WeightOperand::fp8_block_f32>();
  check_tiles<WeightOperand::mxfp8>();
  check_tiles<WeightOperand::nvfp4>();
  check_tiles<WeightOperand::mxfp4>();
  check_tiles<WeightOperand::fp8_f32>();
}

}  // namespace
}  // namespace sluice::sm90
