// SPDX-License-Identifier: Apache-2.0
// Tokens drawn at a temperature: their frequencies against exact distributions written from sampling/choose.h.
#include <set>

#include "tests/ops/sampling.h"

namespace sluice::ops {
namespace {

using sampling::LogitEdit;
using sampling::Sampled;
using sampling::SampleRow;

// Probabilities of each token by the definition: everything sorted, nothing clever.
std::vector<double> distribution(const Logits& logits, const SampleRow& row) {
  std::vector<size_t> ids(logits.size());
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = i;
  std::stable_sort(ids.begin(), ids.end(), [&](size_t a, size_t b) { return logits[a] > logits[b]; });
  const auto weight = [&](size_t id) {
    return std::exp((double{logits[id]} - double{logits[ids[0]]}) / row.temperature);
  };
  size_t kept = ids.size();
  if (row.top_k > 0) kept = std::min(kept, static_cast<size_t>(row.top_k));
  double total = 0, mass = 0;
  for (size_t i = 0; i < kept; ++i) total += weight(ids[i]);
  if (row.top_p < 1) {
    size_t nucleus = 0;
    while (nucleus < kept && mass < row.top_p * total) mass += weight(ids[nucleus++]);
    kept = nucleus;
  }
  std::vector<double> p(logits.size(), 0);
  total = 0;
  for (size_t i = 0; i < kept; ++i)
    if (weight(ids[i]) >= row.min_p) total += p[ids[i]] = weight(ids[i]);
  for (double& v : p) v /= total;
  return p;
}

// Frequencies over many positions: within six standard deviations, and a few counts where hardly any are expected. One
// of the 1500 frequencies of these tests is beyond that by chance in 3e-6 of the runs (2e-9 each).
// What has no probability is never drawn.
void expect_distribution(Conformance& t, const Logits& logits, SampleRow row, const std::vector<double>& exact) {
  constexpr int kDraws = 20000, kBatch = 4000;
  row.seed = random()();
  std::vector<int> counts(logits.size(), 0);
  Rows device = upload(t, std::vector<Logits>(kBatch, logits));
  for (int first = 0; first < kDraws; first += kBatch) {
    std::vector<SampleRow> rows(kBatch, row);
    for (int i = 0; i < kBatch; ++i) {
      rows[static_cast<size_t>(i)].logits = i;
      rows[static_cast<size_t>(i)].position = first + i;
    }
    for (const Sampled& s : sample(t, device, rows)) {
      ASSERT_EQ(s.problem, Sampled::Problem::none);
      ++counts[static_cast<size_t>(s.token)];
    }
  }
  for (size_t i = 0; i < exact.size(); ++i) {
    const double p = exact[i];
    if (p == 0)
      EXPECT_EQ(counts[i], 0) << "token " << i << ", seed " << row.seed;
    else
      EXPECT_NEAR(counts[i], p * kDraws, 6 * std::sqrt(p * (1 - p) * kDraws) + 8)
          << "token " << i << ", seed " << row.seed;
  }
}

TEST_P(Conformance, DrawsFollowTheDistribution) {
  const Logits logits{std::log(0.1f), std::log(0.4f), std::log(0.2f), std::log(0.3f)};
  const auto expect = [&](const SampleRow& row, const std::vector<double>& exact) {
    expect_distribution(*this, logits, row, exact);
    // The oracle of the larger vocabularies below gives the same numbers.
    const std::vector<double> oracle = distribution(logits, row);
    for (size_t i = 0; i < exact.size(); ++i) EXPECT_NEAR(oracle[i], exact[i], 1e-6);
  };
  expect({.temperature = 1}, {0.1, 0.4, 0.2, 0.3});
  expect({.temperature = 0.5}, {0.01 / 0.3, 0.16 / 0.3, 0.04 / 0.3, 0.09 / 0.3});
  expect({.temperature = 1, .top_k = 2}, {0, 4. / 7, 0, 3. / 7});
  expect({.temperature = 1, .top_k = 1}, {0, 1, 0, 0});
  expect({.temperature = 1, .top_k = 900}, {0.1, 0.4, 0.2, 0.3});
  // 0.4 + 0.3 reaches 0.65; the next one is not needed.
  expect({.temperature = 1, .top_p = 0.65}, {0, 4. / 7, 0, 3. / 7});
  expect({.temperature = 1, .top_p = 0.85}, {0, 4. / 9, 2. / 9, 3. / 9});
  expect({.temperature = 1, .top_p = 1e-9}, {0, 1, 0, 0});
  // top_p counts within what top_k left: 4/7 reaches 0.5.
  expect({.temperature = 1, .top_k = 2, .top_p = 0.5}, {0, 1, 0, 0});
  // At least 0.6 times as likely as the likeliest: 0.24.
  expect({.temperature = 1, .min_p = 0.6}, {0, 4. / 7, 0, 3. / 7});
  expect({.temperature = 1, .top_p = 0.85, .min_p = 0.6}, {0, 4. / 7, 0, 3. / 7});
  expect({.temperature = 1, .min_p = 1}, {0, 1, 0, 0});
}

TEST_P(Conformance, DrawsFromLargerVocabularies) {
  Logits logits = random_logits(300);
  logits[7] = -INFINITY, logits[299] = -INFINITY;
  for (const SampleRow& row : {SampleRow{.temperature = 1}, SampleRow{.temperature = 2.5},
                               SampleRow{.temperature = 0.8, .top_k = 50}, SampleRow{.temperature = 1, .top_p = 0.9},
                               SampleRow{.temperature = 1.5, .top_k = 200, .top_p = 0.95, .min_p = 0.01}})
    expect_distribution(*this, logits, row, distribution(logits, row));
  // A small temperature is the largest logit.
  const auto best = static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  logits[static_cast<size_t>(best)] += 1;  // by far: of two that are 3e-6 apart the second is drawn as well
  for (int i = 0; i < 20; ++i) EXPECT_EQ(sample_one(*this, logits, {.temperature = 1e-6, .position = i}).token, best);
  EXPECT_EQ(sample_one(*this, {3.5f}, {.temperature = 1}).token, 0);
}

// A masked row chooses as if the logits of the other tokens were -infinity; its log probabilities know of no mask.
TEST_P(Conformance, MasksLeaveTheTokensOfTheirBits) {
  for (const int64_t vocab : {1, 31, 32, 33, 4097, 151936}) {
    const auto words = static_cast<size_t>(sampling::mask_words(vocab));
    constexpr int kRows = 8;
    std::vector<Logits> all, masked;
    std::vector<SampleRow> rows;
    std::vector<LogitEdit> edits;
    // Two masks more than rows that have one; bits after the vocabulary in the last word mean nothing.
    std::vector<uint32_t> masks(3 * words);
    for (uint32_t& word : masks) word = random()() % 4 == 0 ? ~0u : static_cast<uint32_t>(random()() & random()());
    for (int mask = 0; mask < 3; ++mask)  // some token is left
      masks[static_cast<size_t>(mask) * words] |= 1u;
    for (int i = 0; i < kRows; ++i) {
      all.push_back(random_logits(vocab));
      SampleRow row{.logits = i, .first_edit = static_cast<int32_t>(edits.size()), .num_edits = i % 2};
      if (i % 2 == 1) edits.push_back({.token = 0, .bias = 30});
      row.mask = i % 4 - 1;
      row.top_logprobs = i % 3 - 1;
      row.temperature = i < 4 ? 0 : i == 6 ? 1e50 : 1.5;  // 1e50: its inverse is 0 in float32
      row.top_k = i % 3 == 0 ? 0 : 50;
      row.seed = random()();
      rows.push_back(row);
      masked.push_back(all.back());
      for (int64_t t = 0; row.mask >= 0 && t < vocab; ++t) {
        const uint32_t word = masks[static_cast<size_t>(row.mask) * words + static_cast<size_t>(t) / 32];
        if ((word >> (t % 32) & 1) == 0) masked.back()[static_cast<size_t>(t)] = -INFINITY;
      }
    }
    Rows device = upload(*this, all), expected_device = upload(*this, masked);
    const auto out = sample(*this, device, rows, edits, masks);
    std::vector<SampleRow> plain = rows;
    for (SampleRow& row : plain) row.mask = -1;
    const auto expected = sample(*this, expected_device, plain, edits);
    for (size_t i = 0; i < kRows; ++i) {
      SCOPED_TRACE(testing::Message() << "row " << i << " of " << vocab);
      EXPECT_EQ(out[i].token, expected[i].token);
      EXPECT_EQ(out[i].largest, expected[i].largest);
      EXPECT_EQ(out[i].problem, Sampled::Problem::none);
      if (rows[i].top_logprobs < 0) continue;
      expect_likelihood(out[i].logprob.chosen, all[i], out[i].token);
      ASSERT_EQ(out[i].logprob.top.size(), static_cast<size_t>(std::min<int64_t>(rows[i].top_logprobs, vocab)));
    }
    EXPECT_TRUE(device.same_bytes(expected_device));
    // A mask that leaves nothing.
    std::vector<uint32_t> none(words, 0);
    Rows one = upload(*this, {all[0]});
    const Sampled nothing = sample(*this, one, {{.mask = 0, .temperature = 1}}, {}, none)[0];
    EXPECT_EQ(nothing.problem, Sampled::Problem::not_finite);
    EXPECT_EQ(nothing.largest, -INFINITY);
  }
}

TEST_P(Conformance, EqualLogitsAreRankedById) {
  const Logits logits(500, 1.5f);
  for (const SampleRow& row : {SampleRow{.temperature = 1, .top_k = 3}, SampleRow{.temperature = 1, .top_p = 0.0055}}) {
    std::vector<SampleRow> rows(200, row);
    for (int i = 0; i < 200; ++i) {
      rows[static_cast<size_t>(i)].logits = i;
      rows[static_cast<size_t>(i)].position = i;
    }
    Rows device = upload(*this, std::vector<Logits>(200, logits));
    std::set<int32_t> seen;
    for (const Sampled& s : sample(*this, device, rows)) seen.insert(s.token);
    EXPECT_EQ(seen, (std::set<int32_t>{0, 1, 2}));
  }
}

TEST_P(Conformance, NucleusOfManyTokensIsWhatAFullSortFinds) {
  constexpr int kVocab = 3000, kDraws = 4000;
  Logits logits(kVocab);
  for (size_t i = 0; i < kVocab; ++i) logits[i] = static_cast<float>(i * 7919 % kVocab) * 0.001f;
  const SampleRow row{.temperature = 1, .top_p = 0.5, .seed = random()()};
  const std::vector<double> p = distribution(logits, row);
  std::vector<bool> seen(kVocab, false);
  Rows device = upload(*this, std::vector<Logits>(200, logits));
  for (int first = 0; first < kDraws; first += 200) {
    std::vector<SampleRow> rows(200, row);
    for (int i = 0; i < 200; ++i) {
      rows[static_cast<size_t>(i)].logits = i;
      rows[static_cast<size_t>(i)].position = first + i;
    }
    for (const Sampled& s : sample(*this, device, rows)) {
      EXPECT_GT(p[static_cast<size_t>(s.token)], 0) << s.token;
      seen[static_cast<size_t>(s.token)] = true;
    }
  }
  // A nucleus of n equal tokens would show n (1 - exp(-draws / n)) of them; these are nearly equal.
  const auto inside = static_cast<double>(std::count_if(p.begin(), p.end(), [](double v) { return v > 0; }));
  EXPECT_GT(static_cast<double>(std::count(seen.begin(), seen.end(), true)),
            0.9 * inside * (1 - std::exp(-kDraws / inside)));
}

TEST_P(Conformance, SeedAndPositionDecideNotTheBatch) {
  constexpr int kRows = 60;
  std::vector<Logits> all;
  std::vector<SampleRow> rows;
  std::vector<LogitEdit> edits;
  for (int i = 0; i < kRows; ++i) {
    all.push_back(random_logits(1100));
    SampleRow row{.logits = i, .first_edit = static_cast<int32_t>(edits.size()), .num_edits = i % 3};
    for (int e = 0; e < i % 3; ++e) edits.push_back({.token = e * 5, .bias = 2, .banned = e == 1});
    row.top_logprobs = i % 4 - 1;
    row.temperature = i % 5 == 0 ? 0 : 0.9;
    row.top_k = i % 2 == 0 ? 0 : 40;
    row.top_p = i % 7 == 0 ? 0.8 : 1;
    row.seed = static_cast<uint64_t>(i % 6) << 40;
    row.position = 1000 + i;
    rows.push_back(row);
  }
  Rows device = upload(*this, all);
  const auto out = sample(*this, device, rows, edits);
  std::vector<size_t> order(kRows);
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::shuffle(order.begin(), order.end(), random());
  std::vector<SampleRow> shuffled;
  for (const size_t i : order) shuffled.push_back(rows[i]);
  Rows again = upload(*this, all);
  const auto mixed = sample(*this, again, shuffled, edits);
  EXPECT_TRUE(again.same_bytes(device));
  const auto expect_same = [](const Sampled& a, const Sampled& b) {
    EXPECT_EQ(a.token, b.token);
    EXPECT_EQ(a.largest, b.largest);
    EXPECT_EQ(a.logprob.chosen.logprob, b.logprob.chosen.logprob);
    ASSERT_EQ(a.logprob.top.size(), b.logprob.top.size());
    for (size_t k = 0; k < a.logprob.top.size(); ++k) {
      EXPECT_EQ(a.logprob.top[k].token, b.logprob.top[k].token);
      EXPECT_EQ(a.logprob.top[k].logprob, b.logprob.top[k].logprob);
    }
  };
  for (size_t i = 0; i < order.size(); ++i) {
    expect_same(mixed[i], out[order[i]]);
    SampleRow alone = rows[i];
    alone.logits = 0;
    expect_same(sample_one(*this, all[i], alone, edits), out[i]);
  }
  // Another seed or position draws another number.
  const Logits flat(1000, 0.0f);
  int same = 0;
  for (int i = 0; i < 50; ++i) {
    const int32_t token = sample_one(*this, flat, {.temperature = 1, .seed = 7, .position = i}).token;
    same += token == sample_one(*this, flat, {.temperature = 1, .seed = 8, .position = i}).token;
    same += token == sample_one(*this, flat, {.temperature = 1, .seed = 7, .position = i + 1}).token;
  }
  EXPECT_LT(same, 5);  // of 100 pairs with a chance of a thousandth each
  EXPECT_TRUE(sample(*this, device, {}).empty());
}

}  // namespace
}  // namespace sluice::ops
