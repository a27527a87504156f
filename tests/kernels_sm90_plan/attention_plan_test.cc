// SPDX-License-Identifier: Apache-2.0
// How attention's work is spread: every row has a block, sequences are split where blocks are few, memory is bounded.
#include <gtest/gtest.h>

#include <random>

#include "base/math.h"
#include "kernels/sm90/attention/plan.h"
#include "kernels/sm90/mla/expanded_plan.h"
#include "kernels/sm90/mla/latent_plan.h"
#include "kernels/sm90/tuning.h"
#include "tests/support/random.h"

namespace sluice::sm90 {
namespace {

constexpr AttentionShape kQwen{32, 4, 128, 128};

TEST(AttentionPlan, RowTilesHoldEverySequence) {
  std::mt19937 rng = test::rng();
  for (int round = 0; round < 2000; ++round) {
    const int group = 1 << rng() % 5;
    const AttentionShape shape{4 * group, 4, 128, 128};
    const bool tensor_cores = rng() % 2 == 0;
    int64_t rows = 0, longest = 0, tiles = 0;
    const int64_t sequences = 1 + rng() % 40, most = rng() % 3 == 0 ? 300 : 4;
    for (int64_t s = 0; s < sequences; ++s) {
      const int64_t n = rng() % (most + 1);  // some without rows: a padded batch
      rows += n;
      longest = std::max(longest, n);
      tiles += ceil_div<int64_t>(n * group, tensor_cores ? kAttentionRows : kF32Rows);
    }
    const AttentionPlan p = plan_attention(shape, tensor_cores, {rows, sequences, longest, 4096}, rng() % 2 == 0, 132);
    ASSERT_GE(p.row_tiles, tiles);
    ASSERT_LE(p.row_tiles, tiles + sequences);
  }
}

TEST(AttentionPlan, SplitsWhereBlocksAreFew) {
  const auto plan = [](int64_t sequences, int64_t context) {
    return plan_attention(kQwen, true, {sequences, sequences, 1, context}, true, 132);
  };
  EXPECT_FALSE(plan(1, 256).split());
  EXPECT_EQ(plan(1, 1024).parts, 4);    // one block a chunk
  EXPECT_EQ(plan(1, 32768).parts, 66);  // 264 blocks
  EXPECT_TRUE(plan(8, 8192).split());
  EXPECT_FALSE(plan(64, 8192).split());  // 256 blocks
  // A prompt fills the chip by its rows.
  EXPECT_FALSE(plan_attention(kQwen, true, {8192, 1, 8192, 8192}, true, 132).split());
}

// Every tile of a sequence is in one part, and parts are as long as each other but for one step.
TEST(AttentionPlan, PartsOfASequence) {
  std::mt19937 rng = test::rng();
  for (int round = 0; round < 20000; ++round) {
    AttentionPlan p{};
    p.parts = 1 + rng() % (rng() % 2 == 0 ? 8 : 264);
    p.step_tiles = rng() % 2 == 0 ? 1 : kChunkTiles;
    const int positions = 1 + static_cast<int>(rng() % (rng() % 2 == 0 ? 2000 : 1 << 20));
    const int tiles = ceil_div(positions, kAttentionTile);
    const SequenceParts parts = p.parts_of(positions);
    ASSERT_GE(parts.count, 1);
    ASSERT_LE(parts.count, p.parts);
    ASSERT_TRUE(parts.count == p.parts || parts.count == ceil_div(tiles, p.least_tiles()));
    ASSERT_EQ(parts.first_tile(0), 0);
    int least = tiles, most = 0;
    for (int i = 0; i < parts.count; ++i) {
      const int begin = parts.first_tile(i), end = parts.first_tile(i + 1);
      ASSERT_EQ(begin % p.step_tiles, 0);
      ASSERT_LT(begin, end);
      least = std::min(least, end - begin), most = std::max(most, end - begin);
      ASSERT_EQ(parts.part_of_tile(begin), i);
      ASSERT_EQ(parts.part_of_tile(end - 1), i);
    }
    ASSERT_LE(most - least, p.step_tiles);
    ASSERT_EQ(parts.first_tile(parts.count), round_up(tiles, p.step_tiles));
  }
  EXPECT_EQ(AttentionPlan{}.parts_of(0).count, 1);  // a sequence without rows: padding
}

TEST(AttentionPlan, NewTokensAndPrompts) {
  const auto plan = [](int64_t rows, int64_t sequences, int64_t longest_rows, int64_t context) {
    return plan_attention(kQwen, true, {rows, sequences, longest_rows, context}, true, 132);
  };
  const AttentionPlan tokens = plan(256, 256, 1, 200), few = plan(4, 4, 1, 200), deep = plan(256, 256, 1, 4000);
  EXPECT_TRUE(tokens.tokens && !tokens.tiles);
  EXPECT_EQ(tokens.token_tiles, 2);  // 1024 items: three rounds of 396 blocks, four of 264
  EXPECT_EQ(tokens.token_blocks, 396);
  EXPECT_EQ(plan(64, 64, 1, 200).token_tiles, 3);
  EXPECT_EQ(few.token_blocks, 16);
  EXPECT_EQ(deep.token_blocks, 1024);
  EXPECT_EQ(plan(1, 1, 1, 32768).token_blocks, 4 * 66);  // and its parts
  const AttentionPlan drafts = plan(256 * 8, 256, 8, 200), prompt = plan(900, 1, 900, 900),
                      mixed = plan(900, 5, 896, 900);
  EXPECT_TRUE(drafts.tiles && !drafts.tokens);
  EXPECT_TRUE(prompt.tiles && !prompt.tokens);
  EXPECT_TRUE(mixed.tiles && mixed.tokens);
  for (int64_t sequences = 1; sequences <= 1 << 16; sequences *= 4) {
    const AttentionPlan p = plan(sequences, sequences, 1, 100);
    EXPECT_GE(p.token_blocks * kTokenItems, sequences * kQwen.key_heads);
  }
}

TEST(AttentionPlan, PartialResultsAreBounded) {
  for (int64_t sequences = 1; sequences <= 256; sequences *= 2)
    for (int64_t context = 1; context <= 1 << 20; context *= 4)
      for (const bool row_invariant : {false, true}) {
        const AttentionPlan p = plan_attention(kQwen, true, {sequences, sequences, 1, context}, row_invariant, 132);
        ASSERT_LE(partial_bytes(kQwen, p), kMaxPartialBytes);
        ASSERT_EQ(partial_bytes(kQwen, p) > 0, p.split());
      }
}

// Prompts that another kernel computes take no room.
TEST(AttentionPlan, PartialResultsOfOwnRows) {
  const AttentionPlan mixed = plan_attention(kQwen, true, {4096, 2, 127, 4096}, false, 132);
  EXPECT_TRUE(mixed.split());
  EXPECT_EQ(mixed.partial_rows, 2 * 127);
  EXPECT_EQ(mixed.partial_row(1, 4000, 3), 127 + 3);
  EXPECT_EQ(partial_bytes(kQwen, mixed), 2 * 127 * 32 * mixed.results * 128 * 4);
  const AttentionPlan chunk = plan_attention(kQwen, true, {107, 8, 100, 4096}, false, 132);
  EXPECT_EQ(chunk.partial_rows, 107);
  EXPECT_EQ(chunk.partial_row(7, 106, 0), 106);
}

TEST(AttentionPlan, ShapesOfTheTensorCores) {
  EXPECT_TRUE(attention_on_tensor_cores(kQwen, false, false, false));
  EXPECT_FALSE(attention_on_tensor_cores(kQwen, true, false, false));
  EXPECT_FALSE(attention_on_tensor_cores(kQwen, false, true, false));
  EXPECT_FALSE(attention_on_tensor_cores({128, 1, 576, 512}, false, false, true));
  EXPECT_FALSE(attention_on_tensor_cores({4, 2, 96, 96}, false, false, false));
  EXPECT_LE(f32_shared_bytes({128, 1, 576, 512}, true), kMaxSharedBytes);
  EXPECT_LE(f32_shared_bytes({8, 8, 256, 256}, false), kMaxSharedBytes);
}

TEST(AttentionPlan, ClustersWhereSequencesAreFew) {
  const auto cluster = [](int64_t sequences, int64_t context, int64_t rows = 1) {
    const AttentionBounds bounds{sequences * rows, sequences, rows, context};
    EXPECT_EQ(plan_attention(kQwen, true, bounds, true, 132).cluster, 0);
    const AttentionPlan p = plan_attention(kQwen, true, bounds, false, 132);
    EXPECT_TRUE(p.cluster == 0 || !p.split());
    return p.cluster;
  };
  EXPECT_EQ(cluster(1, 1024), 16);
  EXPECT_EQ(cluster(1, 2048), 16);
  EXPECT_EQ(cluster(1, 4096), 0);  // four tiles each
  EXPECT_EQ(cluster(1, 256), 0);   // one chunk
  EXPECT_EQ(cluster(2, 1024), 16);
  EXPECT_EQ(cluster(4, 1024), 8);
  EXPECT_EQ(cluster(4, 1024, 2), 8);
  EXPECT_EQ(cluster(4, 1024, 4), 0);  // 32 pairs
  EXPECT_EQ(cluster(8, 1024), 0);
  EXPECT_EQ(cluster(16, 1024), 0);
  EXPECT_EQ(cluster(32, 1024), 0);
  EXPECT_EQ(cluster(64, 1024), 0);
}

TEST(PrefillPlan, TilesHoldEveryLongSequence) {
  std::mt19937 rng = test::rng();
  for (int round = 0; round < 2000; ++round) {
    const int64_t sequences = 1 + rng() % 40;
    int64_t rows = 0, longest = 0, tiles = 0;
    for (int64_t s = 0; s < sequences; ++s) {
      const int64_t n = rng() % (rng() % 3 == 0 ? 2000 : 5);
      rows += n;
      longest = std::max(longest, n);
      tiles += ceil_div<int64_t>(n, kFlashRows);
    }
    for (const bool lists : {false, true}) {
      const PrefillPlan p = plan_prefill(kQwen, rows, sequences, longest, 132, lists);
      ASSERT_GE(p.tiles, tiles);
      ASSERT_EQ(p.items, p.tiles * 32);
      ASSERT_EQ(p.blocks, lists ? std::min<int64_t>(p.items, 132) : p.items);
    }
  }
}

TEST(PrefillPlan, SlotsDealEachItemOnceAndEvenly) {
  for (const bool lists : {false, true})
    for (const int blocks : {1, 2, 7, 132})
      for (const int64_t items : {0, 1, 5, 131, 132, 133, 264, 265, 1000, 4096}) {
        if (!lists && items > blocks) continue;  // a block for each item
        const PrefillSlots slots{blocks, items, lists};
        ASSERT_EQ(slots.begin(0), 0);
        ASSERT_EQ(slots.begin(blocks), items);
        std::vector<int64_t> item_of(static_cast<size_t>(items), -1);
        for (int64_t i = 0; i < items; ++i) {
          ASSERT_LT(slots.of(i), items);
          ASSERT_EQ(item_of[static_cast<size_t>(slots.of(i))], -1);
          item_of[static_cast<size_t>(slots.of(i))] = i;
        }
        // Item i has items - i units of work: no block gets more than another but for one item.
        int64_t least = items * items, most = 0;
        for (int64_t b = 0; b < blocks; ++b) {
          int64_t sum = 0;
          ASSERT_LE(slots.begin(b), slots.begin(b + 1));
          for (int64_t at = slots.begin(b); at < slots.begin(b + 1); ++at) {
            sum += items - item_of[static_cast<size_t>(at)];
            if (at > slots.begin(b)) {
              ASSERT_GT(item_of[static_cast<size_t>(at)], item_of[static_cast<size_t>(at - 1)]);  // longest first
            }
          }
          least = std::min(least, sum);
          most = std::max(most, sum);
        }
        ASSERT_LE(most - least, items);
      }
}

TEST(LatentPlan, RowsAreCutWhereTheyAreFew) {
  const auto plan = [](int heads, int64_t sequences, int64_t rows, int64_t context, bool invariant = false) {
    return plan_latent(heads, {sequences * rows, sequences, rows, context}, invariant, 132);
  };
  EXPECT_FALSE(plan(128, 1, 2048, 2048).cut);
  EXPECT_FALSE(plan(128, 1, 1, 64).cut);
  EXPECT_FALSE(plan(128, 1, 1, 8192, true).cut);
  const LatentPlan p = plan(128, 1, 1, 8192);
  EXPECT_TRUE(p.cut);
  EXPECT_EQ(p.tiles, 2);
  EXPECT_EQ(p.items, 256);
  EXPECT_EQ(p.blocks, 132);
  EXPECT_EQ(plan(16, 8, 1, 1000).rows_of_tile, 1);
  EXPECT_EQ(plan(16, 8, 5, 1000).rows_of_tile, 4);
  EXPECT_EQ(plan(16, 8, 5, 1000).tiles, 18);
  EXPECT_EQ(plan(16, 8, 5, 1000, true).rows_of_tile, 1);
  EXPECT_EQ(plan(24, 8, 5, 1000).rows_of_tile, 1);
  for (const int64_t rows : {1, 3, 64, 1000})
    for (const int heads : {1, 16, 64, 100, 128})
      for (const int64_t context : {1, 1000, 100000}) {
        const LatentPlan q = plan(heads, 3, rows, context);
        ASSERT_GE(q.items, q.tiles);
        ASSERT_LE(q.blocks, 132);
        ASSERT_LE(latent_partial_bytes(q), int64_t{4} * 132 * 64 * 512 * 2);
      }
}

// Where rows share tiles, each sequence has room for its own.
TEST(LatentPlan, SharedTilesHoldEveryRow) {
  std::mt19937 rng = test::rng();
  for (int round = 0; round < 2000; ++round) {
    const int of_tile = 1 << (1 + rng() % 6);
    int begin = 0, last = 0;
    for (int s = 0; s < 20; ++s) {
      const int rows = static_cast<int>(rng() % 40), first = begin / of_tile + s;
      ASSERT_GE(first, last);
      last = first + ceil_div(rows, of_tile);
      begin += rows;
    }
    ASSERT_LE(last, begin / of_tile + 20);
  }
}

TEST(ExpandedPlan, TakesTheFormOfFewerOperations) {
  const auto plan = [](int heads, int64_t prompts, int64_t rows, int64_t context) {
    return plan_expanded(heads, {prompts, prompts * rows, prompts * (context + rows)}, 132);
  };
  EXPECT_EQ(plan(128, 1, 8192, 0).heads, 16);
  EXPECT_EQ(plan(128, 16, 1024, 0).heads, 8);
  EXPECT_EQ(plan(128, 1, 256, 0).heads, 128);
  EXPECT_EQ(plan(128, 1, 512, 16384).heads, 32);  // 128 tiles; 64 heads would take 692 MB
  EXPECT_EQ(plan(128, 1, 256, 16384).heads, 0);   // the keys and values of that many positions cost more
  EXPECT_EQ(plan(128, 1, 256, 2048).heads, 0);
  EXPECT_GT(plan(128, 1, 512, 2048).heads, 0);
  EXPECT_EQ(plan(1, 1, 2048, 0).heads, 0);  // 16 tiles
  EXPECT_EQ(plan_expanded(128, {}, 132).heads, 0);
}

TEST(ExpandedPlan, HoldsEveryPromptInBoundedMemory) {
  std::mt19937 rng = test::rng();
  for (int round = 0; round < 2000; ++round) {
    PromptBounds b{};
    int64_t positions = 0;
    for (unsigned i = 0; i < 1 + rng() % 20; ++i) {
      const int64_t rows = 256 + rng() % 2000, context = rng() % 3 == 0 ? 0 : rng() % 40000;
      ++b.prompts;
      b.rows += rows;
      b.positions += context + rows;
      positions += round_up<int64_t>(context + rows, kExpandedTile);
    }
    const int heads = 1 << rng() % 8;
    const ExpandedPlan p = plan_expanded(heads, b, 132);
    if (p.heads == 0) continue;
    ASSERT_EQ(heads % p.heads, 0);
    ASSERT_GE(p.positions, positions);
    ASSERT_EQ(p.positions % kExpandedTile, 0);
    ASSERT_LE(expanded_bytes(p), std::max(b.rows * heads * (kLatentCached + kLatent) * 2, tuning::kExpandedBytes));
  }
}

}  // namespace
}  // namespace sluice::sm90
