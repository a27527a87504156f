// SPDX-License-Identifier: Apache-2.0
// Prompts on FlashInfer's kernel: values against double, and the same bits however a prompt is cut and the work is
// dealt out.
#include "tests/ops_sm90/attention_problem.h"

#define SLUICE_SKIP_WITHOUT_PREFILL() \
  SLUICE_SKIP_WITHOUT_DEVICE();       \
  if (!sm90::has_flashinfer()) GTEST_SKIP() << "this build has no FlashInfer kernels"

namespace sluice::test {
namespace {

const AttentionShape kQwen{32, 4, 128, 128};

int any(int count) { return static_cast<int>(random()() % static_cast<unsigned>(count)); }

// Every sequence on FlashInfer's kernel.
void check_prompts(const Problem& p) {
  const auto& sequences = p.sequences().each;
  const auto whole = p.run(Way{.prefill_rows = 1});
  if (testing::Test::HasFatalFailure()) return;
  for (size_t s = 0; s < sequences.size(); ++s)
    for (int i = 0; i < 4; ++i) {
      const int rows = sequences[s].second, r = i == 0 ? 0 : i == 1 ? rows - 1 : any(rows);
      p.check_row(whole, static_cast<int>(s), r, any(p.shape().heads), true);
      if (testing::Test::HasFatalFailure()) return;
    }
  for (const int multiprocessors : {1, 7, 132, 100000})
    ASSERT_EQ(p.run(Way{multiprocessors, 1, true}), whole) << "lists of " << multiprocessors;
  // A prompt cut anywhere: the rows before are in the cache.
  for (size_t s = 0; s < sequences.size() && s < 6; ++s) {
    const int rows = sequences[s].second, first = any(rows), count = 1 + any(rows - first);
    const auto part = p.run(Way{.prefill_rows = 1, .lists = true}, static_cast<int>(s), first, count);
    const int64_t at = (p.first_row(static_cast<int>(s)) + first) * p.row_elements();
    ASSERT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + at))
        << count << " rows of sequence " << s << " from " << first << " on";
  }
}

TEST(PrefillSm90, PromptsAndCachedPrefixes) {
  SLUICE_SKIP_WITHOUT_PREFILL();
  const Gpu gpu;
  sm90::allow_attention();
  sm90::allow_flash();
  for (const auto& [shape, block_size, gap] : {std::tuple{kQwen, 64, 0},
                                               {AttentionShape{32, 2, 128, 128}, 64, 1024},
                                               {AttentionShape{5, 1, 128, 128}, 16, 8},
                                               {AttentionShape{2, 2, 128, 128}, 48, 0}})
    for (const float query_size : {1.0f, 6.0f}) {
      SCOPED_TRACE(testing::Message() << shape.heads << " heads, " << shape.key_heads << " key heads, blocks of "
                                      << block_size << ", queries of " << query_size);
      check_prompts({gpu, shape, {{{0, 1}}}, block_size, gap, query_size});
      check_prompts({gpu, shape, {{{0, 128}, {0, 127}, {0, 129}, {0, 96}, {0, 97}}}, block_size, gap, query_size});
      check_prompts({gpu, shape, {{{63, 65}, {64, 64}, {65, 300}, {95, 1}, {191, 193}}}, block_size, gap, query_size});
      check_prompts({gpu, shape, {{{0, 700}}}, block_size, gap, query_size});
      check_prompts({gpu, shape, {{{1500, 260}, {3, 1}, {0, 33}}}, block_size, gap, query_size});
      if (testing::Test::HasFatalFailure()) return;
    }
}

TEST(PrefillSm90, ManySequencesOfAnyLength) {
  SLUICE_SKIP_WITHOUT_PREFILL();
  const Gpu gpu;
  sm90::allow_attention();
  sm90::allow_flash();
  for (const int count : {2, 33, 64}) {
    Sequences sequences;
    for (int s = 0; s < count; ++s) sequences.each.emplace_back(any(3) == 0 ? 0 : any(400), 1 + any(300));
    check_prompts({gpu, {8, 2, 128, 128}, sequences, 64, 0});
    if (testing::Test::HasFatalFailure()) return;
  }
}

TEST(PrefillSm90, LongPrompt) {
  SLUICE_SKIP_WITHOUT_PREFILL();
  const Gpu gpu;
  sm90::allow_attention();
  sm90::allow_flash();
  check_prompts({gpu, {8, 1, 128, 128}, {{{0, 5000}}}, 64, 0});
  check_prompts({gpu, {8, 1, 128, 128}, {{{6000, 1100}}}, 64, 0, 4.0f});
}

// Prompts and new tokens of other sequences in one batch: each kernel computes its own, with its own bits.
TEST(PrefillSm90, MixedBatches) {
  SLUICE_SKIP_WITHOUT_PREFILL();
  const Gpu gpu;
  sm90::allow_attention();
  sm90::allow_flash();
  for (const bool lists : {false, true}) {
    const Problem p{gpu, kQwen, {{{400, 1}, {0, 250}, {900, 1}, {64, 200}, {10, 199}, {2000, 4}}}, 64, 0};
    const auto mixed = p.run(Way{132, 200, lists}), own = p.run(132), prompts = p.run(Way{.prefill_rows = 1});
    if (testing::Test::HasFatalFailure()) return;
    for (size_t s = 0; s < p.sequences().each.size(); ++s) {
      const int rows = p.sequences().each[s].second;
      const int64_t first = p.first_row(static_cast<int>(s)) * p.row_elements();
      const auto& expected = rows >= 200 ? prompts : own;
      EXPECT_TRUE(
          std::equal(mixed.begin() + first, mixed.begin() + first + rows * p.row_elements(), expected.begin() + first))
          << "sequence " << s;
    }
  }
}

}  // namespace
}  // namespace sluice::test
