// SPDX-License-Identifier: Apache-2.0
// Sampling in two halves against sampling at once, and tokens that the next step reads on the device.
#include <random>

#include "base/math.h"
#include "tests/ops/sampling.h"
#include "tests/support/random.h"

namespace sluice::ops {
namespace {

using sampling::Sampled;
using sampling::SampleRow;

TEST_P(Conformance, BatchesThatAreBegunGiveTheirResultsInOrder) {
  constexpr int64_t kVocab = 700;
  const auto batch_of = [&](int rows) {
    std::vector<Logits> logits;
    std::vector<SampleRow> asked;
    for (int r = 0; r < rows; ++r) {
      logits.push_back(random_logits(kVocab));
      asked.push_back({.logits = r, .top_logprobs = r % 3 - 1, .temperature = r % 2 * 0.8, .seed = 5, .position = r});
    }
    return std::pair(logits, asked);
  };
  for (const auto& [first_rows, second_rows] : {std::pair{3, 5}, {40, 2}, {1, 64}}) {
    const auto [logits1, rows1] = batch_of(first_rows);
    const auto [logits2, rows2] = batch_of(second_rows);
    Rows same1 = upload(*this, logits1), same2 = upload(*this, logits2);
    const std::vector<Sampled> expected1 = sample(*this, same1, rows1), expected2 = sample(*this, same2, rows2);
    Rows device1 = upload(*this, logits1), device2 = upload(*this, logits2);
    // Tokens of the first batch, while nobody has seen them; 7 stays.
    Values ids = ints({~0, 7, ~(first_rows - 1)}), other_ids = ints({~(second_rows - 1), 3});
    ops->begin_sample(device1.view(), {rows1, {}});
    ops->take_sampled(const_cast<int32_t*>(ids.ints()), 3);
    ops->begin_sample(device2.view(), {rows2, {}});
    ops->take_sampled(const_cast<int32_t*>(other_ids.ints()), 2);
    EXPECT_THROW(ops->begin_sample(device2.view(), {rows2, {}}), Error) << "three at a time";
    const auto expect_next = [&](const std::vector<Sampled>& expected) {
      std::vector<Sampled> out(expected.size());
      ops->end_sample(out);
      for (size_t i = 0; i < out.size(); ++i) {
        EXPECT_EQ(out[i].token, expected[i].token) << i;
        EXPECT_EQ(out[i].largest, expected[i].largest) << i;
        EXPECT_EQ(out[i].logprob.chosen.logprob, expected[i].logprob.chosen.logprob) << i;
        ASSERT_EQ(out[i].logprob.top.size(), expected[i].logprob.top.size()) << i;
        for (size_t n = 0; n < out[i].logprob.top.size(); ++n)
          EXPECT_EQ(out[i].logprob.top[n].token, expected[i].logprob.top[n].token);
      }
    };
    expect_next(expected1);
    expect_next(expected2);
    EXPECT_THROW(ops->end_sample({}), Error) << "none is begun";
    const auto id = [](Values& v, int64_t i) {
      int32_t value = 0;
      std::memcpy(&value, std::as_const(v.memory()).host() + i * 4, 4);
      return value;
    };
    EXPECT_EQ(id(ids, 0), expected1[0].token);
    EXPECT_EQ(id(ids, 1), 7);
    EXPECT_EQ(id(ids, 2), expected1.back().token);
    EXPECT_EQ(id(other_ids, 0), expected2.back().token);
    EXPECT_EQ(id(other_ids, 1), 3);
  }
  // Broken logits choose nothing: a step runs on with token 0, and the host hears of it afterwards.
  Rows broken = upload(*this, {Logits(64, NAN)});
  const SampleRow row{};
  Values ids = ints({~0});
  ops->begin_sample(broken.view(), {{&row, 1}, {}});
  ops->take_sampled(const_cast<int32_t*>(ids.ints()), 1);
  Sampled out;
  ops->end_sample({&out, 1});
  EXPECT_EQ(out.problem, Sampled::Problem::nan);
  int32_t taken = -1;
  std::memcpy(&taken, std::as_const(ids.memory()).host(), 4);
  EXPECT_EQ(taken, 0);
}

// Of a step's integers: pieces of many lengths, without those between them, and tokens of the batch that was begun
// last.
TEST_P(Conformance, MovedBatchesHaveTheirIntegersAndChosenTokens) {
  constexpr int64_t kVocab = 300;
  constexpr int32_t kUntouched = -1, kPad = 3;
  auto random = test::rng<std::mt19937>();
  for (const int64_t rows : {1, 5, 64, 1500}) {
    std::vector<Logits> logits;
    std::vector<SampleRow> asked;
    for (int32_t r = 0; r < std::min<int64_t>(rows, 70); ++r) {
      logits.push_back(random_logits(kVocab));
      asked.push_back({.logits = r, .position = r});
    }
    Rows same = upload(*this, logits);
    const std::vector<Sampled> expected = sample(*this, same, asked);
    std::vector<BatchMove::Piece> pieces;
    int64_t total = 0;
    for (const int64_t count :
         {rows, rows, int64_t{0}, rows + 1, int64_t{1023}, int64_t{1024}, int64_t{1025}, 7 * rows}) {
      pieces.push_back({total, count});
      total = round_up<int64_t>(total + count + kPad, 4);
    }
    const std::shared_ptr<void> staging = ctx.device().allocate_staging(total * 4);
    auto* from = static_cast<int32_t*>(staging.get());
    for (int64_t i = 0; i < total; ++i) from[i] = static_cast<int32_t>(random() >> 1);
    for (int64_t i = 0; i < rows; i += 2) from[i] = ~static_cast<int32_t>(i % static_cast<int64_t>(asked.size()));
    const std::vector<int32_t> sent(from, from + total);
    Values to = ints(std::vector<int32_t>(static_cast<size_t>(total), kUntouched));
    Rows device = upload(*this, logits), later = upload(*this, logits);
    ops->begin_sample(device.view(), {asked, {}});
    const std::shared_ptr<Event> read = ops->move_batch({from, const_cast<int32_t*>(to.ints()), pieces});
    ops->begin_sample(later.view(), {asked, {}});
    read->wait();
    EXPECT_TRUE(std::equal(sent.begin(), sent.end(), from)) << "the host's memory stays";
    std::fill_n(from, total, kUntouched);  // it has been read
    for (int batch = 0; batch < 2; ++batch) {
      std::vector<Sampled> out(expected.size());
      ops->end_sample(out);
      for (size_t i = 0; i < out.size(); ++i) EXPECT_EQ(out[i].token, expected[i].token) << i;
    }
    const auto* moved = reinterpret_cast<const int32_t*>(std::as_const(to.memory()).host());
    size_t piece = 0;
    for (int64_t i = 0; i < total; ++i) {
      while (piece + 1 < pieces.size() && i >= pieces[piece + 1].first) ++piece;
      const int64_t in_piece = i - pieces[piece].first;
      const int32_t id = sent[static_cast<size_t>(i)];
      if (in_piece >= pieces[piece].count + kPad || pieces[piece].count == 0) {
        EXPECT_EQ(moved[i], kUntouched) << i;
      } else if (in_piece < pieces[piece].count) {
        ASSERT_EQ(moved[i], piece == 0 && id < 0 ? expected[static_cast<size_t>(~id)].token : id)
            << i << " of " << rows;
      }
    }
  }
}

}  // namespace
}  // namespace sluice::ops
