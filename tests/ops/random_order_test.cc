// SPDX-License-Identifier: Apache-2.0
// Random orders of experts: distinct places, each expert as often among the first, nothing but the arguments decides.
#include <cmath>
#include <numeric>
#include <set>

#include "base/math.h"
#include "tests/ops/conformance.h"

namespace sluice::ops {
namespace {

// The experts of a row by falling logit, the first of equals first, as routing ranks them.
std::vector<int> chosen(const Rows& logits, int64_t row, int top_k) {
  std::vector<int> ids(static_cast<size_t>(logits.cols()));
  std::iota(ids.begin(), ids.end(), 0);
  std::stable_sort(ids.begin(), ids.end(), [&](int a, int b) { return logits.at(row, a) > logits.at(row, b); });
  ids.resize(static_cast<size_t>(top_k));
  return ids;
}

TEST_P(Conformance, RandomOrderChoosesEveryExpertAsOften) {
  struct Case {
    int64_t rows, experts;
    int top_k;
  };
  for (const Case& c : {Case{500, 128, 8}, Case{500, 60, 6}, Case{200, 384, 22}, Case{3, 1, 1}})
    for (const DType dtype : {DType::bf16, DType::f32}) {
      SCOPED_TRACE(fmt::format("{} experts, top {}, {}", c.experts, c.top_k, to_string(dtype)));
      std::vector<int32_t> positions(static_cast<size_t>(c.rows));
      for (int64_t r = 0; r < c.rows; ++r) positions[static_cast<size_t>(r)] = static_cast<int32_t>(r / 3);
      Values at = ints(positions);
      Rows logits = rows(dtype, c.rows, c.experts);
      const int32_t* on_device = at.ints();
      ops->random_order(7, on_device, logits.view());
      std::vector<int64_t> counts(static_cast<size_t>(c.experts));
      for (int64_t r = 0; r < c.rows; ++r) {
        std::set<double> values;
        for (int64_t e = 0; e < c.experts; ++e) values.insert(logits.at(r, e));
        // All places but those from 256 on have a logit of their own, from 1 downwards in steps of 2^-8.
        ASSERT_EQ(static_cast<int64_t>(values.size()), std::min<int64_t>(c.experts, 257));
        ASSERT_EQ(*values.rbegin(), 1.0);
        ASSERT_EQ(*values.begin(), 1.0 - static_cast<double>(std::min<int64_t>(c.experts - 1, 256)) / 256);
        const std::vector<int> ids = chosen(logits, r, c.top_k);
        for (const int id : ids) ++counts[static_cast<size_t>(id)];
      }
      // Binomial counts: six standard deviations and a half, for up to 384 experts.
      const double p = static_cast<double>(c.top_k) / static_cast<double>(c.experts);
      const double mean = static_cast<double>(c.rows) * p, room = 6 * std::sqrt(mean * (1 - p)) + 0.5;
      for (const int64_t n : counts) EXPECT_NEAR(static_cast<double>(n), mean, room);
    }
}

TEST_P(Conformance, RandomOrderFollowsSeedPositionAndRowAlone) {
  Values at = ints({5, 5, 9});
  const auto make = [&](uint64_t seed, int64_t count) {
    Rows logits = rows(DType::f32, count, 64);
    const int32_t* positions = at.ints();
    ops->random_order(seed, positions, logits.view());
    return logits;
  };
  const Rows all = make(1, 3), again = make(1, 3), part = make(1, 2), other = make(2, 3);
  for (int64_t r = 0; r < 3; ++r) {
    EXPECT_TRUE(all.same_row(r, again, r));
    EXPECT_FALSE(all.same_row(r, other, r));
  }
  for (int64_t r = 0; r < 2; ++r) EXPECT_TRUE(all.same_row(r, part, r)) << "depends on the other rows";
  EXPECT_FALSE(all.same_row(0, all, 1)) << "two rows at one position have one order";
  EXPECT_FALSE(all.same_row(0, all, 2));
  // The CPU's order, on every device.
  Context host{.pool = test_pool()};
  const std::vector<int32_t> positions{5, 5, 9};
  Rows expected(host_queue(), DType::f32, 3, 64);
  make_ops(host)->random_order(1, positions.data(), expected.view());
  for (int64_t r = 0; r < 3; ++r) EXPECT_TRUE(all.same_row(r, expected, r));
}

}  // namespace
}  // namespace sluice::ops
