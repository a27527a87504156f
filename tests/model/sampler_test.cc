// SPDX-License-Identifier: Apache-2.0
#include "model/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "base/error.h"

namespace sluice::model {
namespace {

TEST(Sampler, GreedyTakesTheFirstLargest) {
  Sampler s({});
  const float logits[] = {1, 5, -INFINITY, 5, 0};
  EXPECT_EQ(s.sample(logits, 5, 0), 1);
  const float low[] = {-INFINITY, -INFINITY, -3};
  EXPECT_EQ(s.sample(low, 3, 0), 2);
  const float nan[] = {1, NAN};
  for (const double temperature : {0.0, 1.0})
    EXPECT_THROW(Sampler({.temperature = temperature}).sample(nan, 2, 0), Error);
}

// Frequencies over many positions against the exact distribution: within five standard deviations.
void expect_distribution(const SamplingOptions& o, const std::vector<float>& logits, const std::vector<double>& exact) {
  Sampler s(o);
  constexpr int kDraws = 40000;
  std::map<int32_t, int> counts;
  for (int i = 0; i < kDraws; ++i) ++counts[s.sample(logits.data(), static_cast<int64_t>(logits.size()), i)];
  for (size_t i = 0; i < exact.size(); ++i) {
    const double p = exact[i];
    EXPECT_NEAR(counts[static_cast<int32_t>(i)] / double{kDraws}, p, 5 * std::sqrt(p * (1 - p) / kDraws)) << i;
  }
}

TEST(Sampler, TemperatureTopKAndTopP) {
  const std::vector<float> logits{std::log(0.1f), std::log(0.4f), std::log(0.2f), std::log(0.3f)};
  expect_distribution({.temperature = 1, .seed = 1}, logits, {0.1, 0.4, 0.2, 0.3});
  const double a = std::pow(0.1, 2), b = std::pow(0.4, 2), c = std::pow(0.2, 2), d = std::pow(0.3, 2),
               n = a + b + c + d;
  expect_distribution({.temperature = 0.5, .seed = 2}, logits, {a / n, b / n, c / n, d / n});
  expect_distribution({.temperature = 1, .top_k = 2, .seed = 3}, logits, {0, 4. / 7, 0, 3. / 7});
  expect_distribution({.temperature = 1, .top_k = 1, .seed = 3}, logits, {0, 1, 0, 0});
  // 0.4 + 0.3 reaches 0.65; the next one is not needed.
  expect_distribution({.temperature = 1, .top_p = 0.65, .seed = 4}, logits, {0, 4. / 7, 0, 3. / 7});
  expect_distribution({.temperature = 1, .top_p = 0.85, .seed = 5}, logits, {0, 4. / 9, 2. / 9, 3. / 9});
  // top_p counts within what top_k left: 4/7 reaches 0.5.
  expect_distribution({.temperature = 1, .top_k = 2, .top_p = 0.5, .seed = 6}, logits, {0, 1, 0, 0});
}

TEST(Sampler, SeedAndPositionDecide) {
  std::vector<float> logits(100, 0.0f);
  Sampler a({.temperature = 1, .seed = 7}), b({.temperature = 1, .seed = 7}), c({.temperature = 1, .seed = 8});
  int same = 0;
  for (int i = 99; i >= 0; --i) EXPECT_EQ(a.sample(logits.data(), 100, i), b.sample(logits.data(), 100, i));
  for (int i = 0; i < 100; ++i) same += a.sample(logits.data(), 100, i) == c.sample(logits.data(), 100, i);
  EXPECT_LT(same, 12);
}

TEST(Sampler, RefusesOptions) {
  EXPECT_THROW(Sampler({.temperature = -1}), Error);
  EXPECT_THROW(Sampler({.temperature = NAN}), Error);
  EXPECT_THROW(Sampler({.top_k = -1}), Error);
  EXPECT_THROW(Sampler({.top_p = 0}), Error);
  EXPECT_THROW(Sampler({.top_p = 1.5}), Error);
}

}  // namespace
}  // namespace sluice::model
