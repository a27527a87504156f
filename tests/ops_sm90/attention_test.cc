// SPDX-License-Identifier: Apache-2.0
// Tensor core attention on long contexts: values against double, and the same bits however the work is spread.
#include <set>

#include "tests/ops_sm90/attention_problem.h"

namespace sluice::test {
namespace {

void check_problem(const Problem& p) {
  const auto& sequences = p.sequences().each;
  const auto whole = p.run(1);
  ASSERT_EQ(p.splits(), 1);
  // Values: the first and last rows, and some between.
  for (size_t s = 0; s < sequences.size(); ++s)
    for (int i = 0; i < 4; ++i) {
      const int rows = sequences[s].second;
      const int r = i == 0 ? 0 : i == 1 ? rows - 1 : static_cast<int>(random()() % rows);
      p.check_row(whole, static_cast<int>(s), r, static_cast<int>(random()() % p.shape().heads));
      if (testing::Test::HasFatalFailure()) return;
    }
  // Bits: split over a chip, over a hypothetical larger one, and each time again.
  for (const int multiprocessors : {1, 20, 132, 5000})
    for (const int slack : {1, 3})
      ASSERT_EQ(p.run(Way{.multiprocessors = multiprocessors, .slack = slack}), whole)
          << multiprocessors << " multiprocessors, " << slack << " times the bound";
  // Bits: sequences of few pairs one after another in a block, in any number of blocks.
  for (const int tiles : {2, 3})
    for (const int64_t blocks : {int64_t{1}, int64_t{5}, int64_t{4096}})
      ASSERT_EQ(p.run(Way{.multiprocessors = blocks == 5 ? 132 : 1, .token_blocks = blocks, .token_tiles = tiles}),
                whole)
          << tiles << " tiles, " << blocks << " blocks";
  // Bits: single rows and short runs of rows, as decoding and verification compute them.
  for (size_t s = 0; s < sequences.size(); ++s)
    for (int i = 0; i < 6; ++i) {
      const int rows = sequences[s].second, count = std::min(rows, i < 3 ? 1 : 1 + static_cast<int>(random()() % 9));
      const int first = i == 0 ? 0 : static_cast<int>(random()() % (rows - count + 1));
      const auto part = p.run(132, static_cast<int>(s), first, count);
      const int64_t at = (p.first_row(static_cast<int>(s)) + first) * p.row_elements();
      ASSERT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + at))
          << count << " rows of sequence " << s << " from " << first << " on";
    }
}

TEST(AttentionSm90, DecodeVerificationAndChunks) {
  SLUICE_SKIP_WITHOUT_DEVICE();
  const Gpu gpu;
  sm90::allow_attention();
  for (const auto& [shape, block_size, gap] : {std::tuple{AttentionShape{32, 4, 128, 128}, 64, 0},
                                               {AttentionShape{32, 2, 128, 128}, 16, 8},
                                               {AttentionShape{6, 2, 64, 64}, 64, 1},
                                               {AttentionShape{5, 1, 128, 128}, 48, 0},
                                               {AttentionShape{2, 2, 64, 64}, 32, 3},
                                               {AttentionShape{40, 1, 64, 64}, 64, 2}}) {
    SCOPED_TRACE(testing::Message() << shape.heads << " heads of " << shape.key_width << ", " << shape.key_heads
                                    << " key heads, blocks of " << block_size);
    check_problem({gpu, shape, {{{0, 1}}}, block_size, gap});
    check_problem({gpu, shape, {{{255, 1}, {256, 1}, {1000, 1}, {63, 1}, {64, 1}}}, block_size, gap});
    check_problem({gpu, shape, {{{700, 5}, {3, 1}, {0, 130}, {511, 2}, {300, 40}}}, block_size, gap});
    if (testing::Test::HasFatalFailure()) return;
  }
}

TEST(AttentionSm90, PagesOfCodes) {
  SLUICE_SKIP_WITHOUT_DEVICE();
  const Gpu gpu;
  sm90::allow_attention();
  for (const auto& [shape, block_size, gap] : {std::tuple{AttentionShape{32, 4, 128, 128}, 64, 0},
                                               {AttentionShape{32, 2, 128, 128}, 16, 8},
                                               {AttentionShape{6, 2, 64, 64}, 64, 1},
                                               {AttentionShape{40, 1, 64, 64}, 48, 2}}) {
    SCOPED_TRACE(testing::Message() << shape.heads << " heads of " << shape.key_width << ", blocks of " << block_size);
    check_problem({gpu, shape, {{{255, 1}, {256, 1}, {1000, 1}, {63, 1}, {0, 1}}}, block_size, gap, 1, true});
    check_problem({gpu, shape, {{{700, 5}, {3, 1}, {0, 130}, {511, 2}}}, block_size, gap, 1, true});
    if (testing::Test::HasFatalFailure()) return;
  }
  check_problem({gpu, {8, 2, 128, 128}, {{{9000, 1}, {17, 1}, {4095, 2}}}, 64, 0, 1, true});
  // Queries beyond the range of halves on either side.
  for (const float size : {1e-12f, 1e-5f, 300.0f, 1e5f})
    check_problem({gpu, {24, 2, 128, 128}, {{{500, 1}, {40, 1}, {0, 90}}}, 64, 0, size, true});
}

// Short contexts, of which a block takes many, among them sequences without rows: a padded step.
TEST(AttentionSm90, ManySequencesPerBlock) {
  SLUICE_SKIP_WITHOUT_DEVICE();
  const Gpu gpu;
  sm90::allow_attention();
  for (const auto& [shape, block_size, gap] : {std::tuple{AttentionShape{32, 4, 128, 128}, 64, 0},
                                               {AttentionShape{16, 2, 128, 128}, 128, 0},
                                               {AttentionShape{8, 2, 64, 64}, 16, 1}})
    for (const bool e4m3 : {false, true}) {
      Sequences sequences;
      for (int i = 0; i < 150; ++i)
        sequences.each.emplace_back(static_cast<int>(random()() % (i % 10 == 0 ? 700 : 200)),
                                    i % 7 == 3 || i > 140 ? 0 : 1 + static_cast<int>(random()() % 2));
      const Problem p{gpu, shape, sequences, block_size, gap, 1, e4m3};
      const auto whole = p.run(132);
      for (int s = 0; s < 150; ++s)
        for (int r = 0; r < sequences.each[s].second; ++r) {
          p.check_row(whole, s, r, static_cast<int>(random()() % shape.heads));
          if (testing::Test::HasFatalFailure()) return;
        }
      for (const int tiles : {2, 3})
        for (const int64_t blocks : {1, 33, 100, 264, 5000})
          ASSERT_EQ(p.run(Way{.token_blocks = blocks, .token_tiles = tiles}), whole) << tiles << " " << blocks;
    }
}

TEST(AttentionSm90, LongContexts) {
  SLUICE_SKIP_WITHOUT_DEVICE();
  const Gpu gpu;
  sm90::allow_attention();
  check_problem({gpu, {8, 2, 128, 128}, {{{9000, 1}, {17, 1}, {4095, 3}}}, 64, 0});
  check_problem({gpu, {8, 2, 128, 128}, {{{0, 2000}}}, 64, 0});
  check_problem({gpu, {8, 1, 64, 64}, {{{1500, 600}, {2100, 1}}}, 64, 0});
}

// Where bits may depend on the batch: clusters for new tokens of few sequences, else parts that begin at any tile.
// Values only, since the cuts depend on the number of blocks. Bounds of recorded launches are above the sequences' own
// lengths.
TEST(AttentionSm90, FreeCuts) {
  SLUICE_SKIP_WITHOUT_DEVICE();
  const Gpu gpu;
  sm90::allow_attention();
  std::set<int> clusters;
  std::set<int64_t> parts;
  for (const AttentionShape& shape :
       {AttentionShape{32, 4, 128, 128}, {32, 2, 128, 128}, {6, 2, 64, 64}, {5, 1, 128, 128}})
    for (const Sequences& sequences : {Sequences{{{0, 1}}},
                                       {{{62, 1}, {63, 1}, {64, 1}}},
                                       {{{1000, 1}, {3, 1}, {255, 1}, {2000, 1}}},
                                       {{{9000, 1}}},
                                       {{{9000, 1}, {17, 1}, {4095, 3}, {0, 1}, {511, 2}}},
                                       {{{2000, 90}, {700, 1}, {5000, 1}}},
                                       {{{126, 2}, {127, 1}, {700, 2}}}}) {
      const Problem p{gpu, shape, sequences, 64, 3, 3.0f, random()() % 2 == 0};
      for (const int multiprocessors : {10, 20, 50, 132, 1000}) {
        const int slack = 1 + static_cast<int>(random()() % 3);
        const auto out = p.run(Way{.multiprocessors = multiprocessors, .row_invariant = false, .slack = slack});
        clusters.insert(p.clusters());
        parts.insert(p.splits());
        for (size_t s = 0; s < sequences.each.size(); ++s)
          for (int r = 0; r < sequences.each[s].second; ++r) {
            p.check_row(out, static_cast<int>(s), r, static_cast<int>(random()() % shape.heads));
            if (testing::Test::HasFatalFailure()) return;
          }
      }
    }
  // Which sizes of clusters there are follows the bounds that were drawn.
  EXPECT_TRUE(clusters.count(0));
  EXPECT_GT(*clusters.rbegin(), 0);
  EXPECT_GT(parts.size(), 4u);
}

}  // namespace
}  // namespace sluice::test
