// SPDX-License-Identifier: Apache-2.0
#include "sampling/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "base/error.h"
#include "sampling/logprobs.h"
#include "tests/support/random.h"

namespace sluice::sampling {
namespace {

int32_t sample(const Sampler& sampler, std::vector<float>& logits, int64_t position,
               const std::vector<int32_t>& banned = {}) {
  std::vector<LogitEdit> edits;
  SampleRow row = sampler.row(0, position, banned, {}, edits);
  if (!sampler.allowed_mask().empty()) row.mask = 0;
  ChooseScratch scratch;
  Sampled out;
  choose_token(row, {{}, edits, sampler.allowed_mask()}, logits, scratch, out);
  return checked_token(out, position);
}

int32_t choose(const SamplingOptions& o, std::vector<float> logits, int64_t position = 0,
               std::vector<int32_t> banned = {}) {
  return sample(Sampler(o), logits, position, banned);
}

TEST(Sampler, GreedyTakesTheFirstLargest) {
  EXPECT_EQ(choose({}, {1, 5, -INFINITY, 5, 0}), 1);
  EXPECT_EQ(choose({}, {-INFINITY, -INFINITY, -3}), 2);
  for (const double temperature : {0.0, 1.0}) {
    EXPECT_THROW(choose({.temperature = temperature}, {1, NAN}), Error);
    EXPECT_THROW(choose({.temperature = temperature}, {-INFINITY, -INFINITY}), Error);
    EXPECT_THROW(choose({.temperature = temperature}, {1, INFINITY}), Error);
  }
}

// Whatever the size, and wherever the largest, its equals and a NaN stand: the first that no other exceeds. Few values
// make ties; the sizes lie around the pieces in which the logits are compared.
TEST(Sampler, GreedyOfAnySize) {
  auto rng = test::rng();
  for (int trial = 0; trial < 400; ++trial) {
    const size_t size = trial % 4 == 0 ? 1 + rng() % 40 : 1024 * (trial % 4) + rng() % 9 - 4;
    const int values = trial % 3 == 0 ? 3 : 100000;
    std::vector<float> logits(size);
    for (float& x : logits) {
      x = static_cast<float>(static_cast<int>(rng() % static_cast<uint32_t>(values)) - values / 2) / 64;
      if (rng() % 50 == 0) x = -INFINITY;
      if (x == 0 && rng() % 2 == 0) x = -0.0f;
    }
    logits[rng() % size] = -4000;  // not all are -infinity
    size_t first = 0;
    while (std::any_of(logits.begin(), logits.end(), [&](float x) { return x > logits[first]; })) ++first;
    EXPECT_EQ(choose({}, logits), static_cast<int32_t>(first)) << "of " << size;
    logits[rng() % size] = NAN;
    EXPECT_THROW(choose({}, logits), Error) << "of " << size;
  }
}

// top_k by its definition: all tokens in descending order, ties by id, as many as k; or by id, where no more are
// allowed.
TEST(Sampler, TopKOfAnySize) {
  auto rng = test::rng();
  for (int trial = 0; trial < 300; ++trial) {
    const size_t size = 1 + rng() % 700;
    const uint32_t values = trial % 2 == 0 ? 5 : 100000;
    std::vector<float> logits(size);
    for (float& x : logits)
      x = rng() % 4 == 0 ? -INFINITY : static_cast<float>(rng() % values) / static_cast<float>(values);
    logits[rng() % size] = 0.5f;
    std::vector<std::pair<float, int32_t>> order;  // the negative logit, the token
    for (size_t i = 0; i < size; ++i)
      if (logits[i] != -INFINITY) order.emplace_back(-logits[i], static_cast<int32_t>(i));
    const int64_t allowed = static_cast<int64_t>(order.size());
    for (const int64_t k : {int64_t{1}, allowed - 1, allowed, allowed + 1, 1 + static_cast<int64_t>(rng() % 40),
                            int64_t{256}, int64_t{257}}) {
      if (k < 1) continue;
      auto kept = order;
      if (k < allowed) {
        std::sort(kept.begin(), kept.end());
        kept.resize(static_cast<size_t>(k));
      }
      const SamplingOptions o{.temperature = 0.25, .top_k = k, .seed = rng()};
      const double top = *std::max_element(logits.begin(), logits.end());
      const auto weight = [&](float negative) { return std::exp((-double{negative} - top) / 0.25); };
      double total = 0;
      for (const auto& [negative, token] : kept) total += weight(negative);
      double left = uniform_at(o.seed, trial) * total;
      size_t i = 0;
      while (i + 1 < kept.size() && (left -= weight(kept[i].first)) >= 0) ++i;
      EXPECT_EQ(choose(o, logits, trial), kept[i].second)
          << "k = " << k << " of " << allowed << ", " << size << " in all";
    }
  }
}

// Frequencies over many positions against the exact distribution: within five standard deviations.
void expect_distribution(const SamplingOptions& o, const std::vector<float>& logits, const std::vector<double>& exact) {
  Sampler s(o);
  constexpr int kDraws = 40000;
  std::map<int32_t, int> counts;
  for (int i = 0; i < kDraws; ++i) {
    std::vector<float> copy = logits;
    ++counts[sample(s, copy, i)];
  }
  for (size_t i = 0; i < exact.size(); ++i) {
    const double p = exact[i];
    EXPECT_NEAR(counts[static_cast<int32_t>(i)] / double{kDraws}, p, 5 * std::sqrt(p * (1 - p) / kDraws)) << i;
  }
}

TEST(Sampler, TemperatureTopKTopPAndMinP) {
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
  // At least 0.6 times as likely as the most likely token: 0.24.
  expect_distribution({.temperature = 1, .seed = 7, .min_p = 0.6}, logits, {0, 4. / 7, 0, 3. / 7});
  expect_distribution({.temperature = 1, .top_p = 0.85, .seed = 8, .min_p = 0.6}, logits, {0, 4. / 7, 0, 3. / 7});
  expect_distribution({.temperature = 1, .seed = 9, .min_p = 1}, logits, {0, 1, 0, 0});
}

TEST(Sampler, NucleusOfManyTokensIsWhatAFullSortFinds) {
  // More tokens than the first piece that is sorted; the nucleus by the definition: sort everything, add up.
  constexpr size_t kVocab = 3000;
  std::vector<float> logits(kVocab);
  for (size_t i = 0; i < kVocab; ++i) logits[i] = static_cast<float>((i * 7919 % kVocab) * 0.001);
  std::vector<std::pair<double, int32_t>> sorted;
  double total = 0;
  for (size_t i = 0; i < kVocab; ++i) {
    sorted.push_back({-std::exp(static_cast<double>(logits[i])), static_cast<int32_t>(i)});
    total -= sorted.back().first;
  }
  std::sort(sorted.begin(), sorted.end());
  std::vector<bool> inside(kVocab, false);
  double mass = 0;
  for (size_t i = 0; i < kVocab && mass < 0.5 * total; ++i) {
    mass -= sorted[i].first;
    inside[static_cast<size_t>(sorted[i].second)] = true;
  }
  Sampler s({.temperature = 1, .top_p = 0.5, .seed = 3});
  std::vector<bool> seen(kVocab, false);
  for (int i = 0; i < 20000; ++i) {
    std::vector<float> copy = logits;
    const auto id = static_cast<size_t>(sample(s, copy, i));
    EXPECT_TRUE(inside[id]) << id;
    seen[id] = true;
  }
  EXPECT_GT(std::count(seen.begin(), seen.end(), true), std::count(inside.begin(), inside.end(), true) * 9 / 10);
}

TEST(Sampler, SeedAndPositionDecide) {
  std::vector<float> logits(100, 0.0f);
  Sampler a({.temperature = 1, .seed = 7}), b({.temperature = 1, .seed = 7}), c({.temperature = 1, .seed = 8});
  int same = 0;
  for (int i = 99; i >= 0; --i) EXPECT_EQ(sample(a, logits, i), sample(b, logits, i));
  for (int i = 0; i < 100; ++i) same += sample(a, logits, i) == sample(c, logits, i);
  EXPECT_LT(same, 12);
}

TEST(Sampler, BiasAndBans) {
  EXPECT_EQ(choose({.logit_bias = {{2, 3.0f}}}, {1, 2, 0}), 2);
  EXPECT_EQ(choose({.logit_bias = {{1, -100.0f}, {900, 1.0f}}}, {1, 2, 0}), 0);
  EXPECT_EQ(choose({}, {1, 2, 0}, 0, {1}), 0);
  for (int i = 0; i < 50; ++i) EXPECT_EQ(choose({.temperature = 1}, {1, 2, 0}, i, {1, 2}), 0);
}

TEST(Sampler, Penalties) {
  const std::vector<float> logits{2.0f, 1.9f, -1.0f, 1.5f};
  const auto after = [&](SamplingOptions o, std::vector<int32_t> prompt, std::vector<int32_t> answer) {
    Sampler s(o);
    s.see_prompt(prompt);
    for (const int32_t t : answer) s.see(t);
    std::vector<float> copy = logits;
    sample(s, copy, 0);
    return copy;
  };
  // Keskar et al. 2019: divided when positive, multiplied when negative; the prompt counts, repetitions do not add up.
  EXPECT_EQ(after({.repetition_penalty = 2}, {0, 2, 2}, {3}), (std::vector<float>{1.0f, 1.9f, -2.0f, 0.75f}));
  // OpenAI's formula: logit - count * frequency - (count > 0) * presence, of the answer alone.
  const auto both = after({.frequency_penalty = 0.5, .presence_penalty = 0.25}, {0, 1}, {3, 3, 2});
  EXPECT_EQ(both, (std::vector<float>{2.0f, 1.9f, -1.75f, 0.25f}));
  EXPECT_EQ(after({.presence_penalty = -1}, {}, {1, 1}), (std::vector<float>{2.0f, 2.9f, -1.0f, 1.5f}));
}

void expect_refused(const SamplingOptions& o, const std::string& sentence) {
  try {
    validate(o, 100);
    ADD_FAILURE() << "accepted; expected: " << sentence;
  } catch (const Error& e) {
    EXPECT_EQ(e.what(), sentence);
    EXPECT_EQ(e.code(), ErrorCode::invalid_argument);
  }
}

TEST(Sampler, RefusesOptionsByName) {
  expect_refused({.temperature = -1}, "temperature is -1; accepted: 0 or more, finite");
  expect_refused({.temperature = NAN}, "temperature is nan; accepted: 0 or more, finite");
  expect_refused({.temperature = INFINITY}, "temperature is inf; accepted: 0 or more, finite");
  expect_refused({.top_k = -1}, "top_k is -1; accepted: 0 (all) or more");
  expect_refused({.top_p = 0}, "top_p is 0; accepted: more than 0, at most 1");
  expect_refused({.top_p = 1.5}, "top_p is 1.5; accepted: more than 0, at most 1");
  expect_refused({.min_p = 9}, "min_p is 9; accepted: 0 to 1");
  expect_refused({.repetition_penalty = 0}, "repetition_penalty is 0; accepted: 0.001 to 2");
  expect_refused({.repetition_penalty = 1e-300}, "repetition_penalty is 1e-300; accepted: 0.001 to 2");
  expect_refused({.frequency_penalty = 2.5}, "frequency_penalty is 2.5; accepted: -2 to 2");
  expect_refused({.presence_penalty = NAN}, "presence_penalty is nan; accepted: -2 to 2");
  expect_refused({.logit_bias = {{100, 1.0f}}}, "logit_bias names token 100; accepted: 0 to 99");
  expect_refused({.logit_bias = {{-1, 1.0f}}}, "logit_bias names token -1; accepted: 0 to 99");
  expect_refused({.logit_bias = {{5, 101.0f}}}, "logit_bias of token 5 is 101; accepted: -100 to 100");
  expect_refused({.allowed_tokens = {3, 100}}, "allowed_tokens names token 100; accepted: 0 to 99");
}

TEST(Sampler, ChoosesAllowedTokensOnly) {
  for (const double temperature : {0.0, 1.0, 100.0})
    for (int64_t position = 0; position < 50; ++position) {
      std::vector<float> logits{5, 1, 4, 2, 3};
      const Sampler s({.temperature = temperature, .seed = 7, .allowed_tokens = {3, 1, 3}}, 5);
      const int32_t token = sample(s, logits, position);
      EXPECT_TRUE(token == 3 || (temperature > 0 && token == 1)) << token;
    }
  // Where nothing is left, the result says so.
  std::vector<float> logits{5, 1, 4};
  std::vector<LogitEdit> edits;
  const std::vector<int32_t> banned{2, 1};
  const Sampler some({.allowed_tokens = {1, 2}}, 3);
  SampleRow row = some.row(0, 0, banned, {}, edits);
  row.mask = 0;
  ChooseScratch scratch;
  Sampled out;
  choose_token(row, {{}, edits, some.allowed_mask()}, logits, scratch, out);
  EXPECT_EQ(out.problem, Sampled::Problem::not_finite);
  EXPECT_EQ(out.largest, -INFINITY);
  EXPECT_THROW(Sampler({.allowed_tokens = {1}}), Error) << "of how many?";
}

TEST(Logprobs, AreTheLogarithmsOfTheSoftmax) {
  const std::vector<float> logits{std::log(0.1f), std::log(0.4f), std::log(0.2f), std::log(0.2f), std::log(0.1f)};
  const TokenLogprob p = logprob_of(logits, 4, 3);
  EXPECT_EQ(p.chosen.token, 4);
  EXPECT_NEAR(p.chosen.logprob, std::log(0.1), 1e-6);
  ASSERT_EQ(p.top.size(), 3u);
  EXPECT_EQ(p.top[0].token, 1);
  EXPECT_EQ(p.top[1].token, 2);  // ties by id
  EXPECT_EQ(p.top[2].token, 3);
  EXPECT_NEAR(p.top[0].logprob, std::log(0.4), 1e-6);
  EXPECT_EQ(logprob_of(logits, 0, 0).top.size(), 0u);
  EXPECT_EQ(logprob_of(logits, 0, 20).top.size(), 5u);
}

}  // namespace
}  // namespace sluice::sampling
