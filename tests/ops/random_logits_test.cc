// SPDX-License-Identifier: Apache-2.0
// Random logits: each expert as often among the largest, nothing but the arguments decides.
#include <cmath>
#include <numeric>

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

TEST_P(Conformance, RandomLogitsChooseEveryExpertAsOften) {
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
      std::vector<int64_t> counts(static_cast<size_t>(c.experts));
      ops->random_logits(on_device, c.rows, logits.view());
      for (int64_t r = 0; r < c.rows; ++r) {
        for (int64_t e = 0; e < c.experts; ++e) {
          ASSERT_GE(std::abs(logits.at(r, e)), 0x1p-5);
          ASSERT_LT(std::abs(logits.at(r, e)), 1);
        }
        for (const int id : chosen(logits, r, c.top_k)) ++counts[static_cast<size_t>(id)];
      }
      // Binomial counts: six standard deviations and a half, for up to 384 experts. In bfloat16 two of the experts are
      // equal once in 1280 pairs, and the lower one is chosen: on average it moves by less than experts / 1280 of the
      // `experts` places, so that its chance to be among the first changes by less than 1 / 1280.
      const double p = static_cast<double>(c.top_k) / static_cast<double>(c.experts);
      const double mean = static_cast<double>(c.rows) * p,
                   room = 6 * std::sqrt(mean * (1 - p)) + 0.5 + static_cast<double>(c.rows) / 1280;
      for (const int64_t n : counts) EXPECT_NEAR(static_cast<double>(n), mean, room);
    }
}

TEST_P(Conformance, RandomLogitsFollowLayerPositionAndRowAlone) {
  Values at = ints({5, 5, 9});
  const auto make = [&](int64_t layers, int64_t count) {
    Rows logits = rows(DType::f32, layers * count, 64);
    const int32_t* positions = at.ints();
    ops->random_logits(positions, count, logits.view());
    return logits;
  };
  const Rows all = make(2, 3), again = make(2, 3), part = make(2, 2);
  for (int64_t i = 0; i < 6; ++i) EXPECT_TRUE(all.same_row(i, again, i));
  for (int64_t r = 0; r < 3; ++r) EXPECT_FALSE(all.same_row(r, all, 3 + r)) << "two layers have the same logits";
  for (int64_t layer = 0; layer < 2; ++layer)
    for (int64_t r = 0; r < 2; ++r)
      EXPECT_TRUE(all.same_row(3 * layer + r, part, 2 * layer + r)) << "depends on the other rows";
  EXPECT_FALSE(all.same_row(0, all, 1)) << "two rows at one position have the same logits";
  EXPECT_FALSE(all.same_row(0, all, 2));
  // The CPU's logits, on every device.
  Context host{.pool = test_pool()};
  const std::vector<int32_t> positions{5, 5, 9};
  Rows expected(host_queue(), DType::f32, 6, 64);
  make_ops(host)->random_logits(positions.data(), 3, expected.view());
  for (int64_t i = 0; i < 6; ++i) EXPECT_TRUE(all.same_row(i, expected, i));
}

}  // namespace
}  // namespace sluice::ops
