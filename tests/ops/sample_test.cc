// SPDX-License-Identifier: Apache-2.0
// From logits to tokens and log probabilities, against exact distributions written from sampling/choose.h.
#include <set>

#include "tests/ops/conformance.h"

namespace sluice::ops {
namespace {

using sampling::LogitEdit;
using sampling::Sampled;
using sampling::SampleRow;

using Logits = std::vector<float>;

Rows upload(Conformance& t, const std::vector<Logits>& rows) {
  Rows logits = t.rows(DType::f32, static_cast<int64_t>(rows.size()), static_cast<int64_t>(rows.at(0).size()));
  for (size_t r = 0; r < rows.size(); ++r)
    for (size_t c = 0; c < rows[r].size(); ++c)
      logits.set(static_cast<int64_t>(r), static_cast<int64_t>(c), double{rows[r][c]});
  return logits;
}

std::vector<Sampled> sample(Conformance& t, Rows& logits, const std::vector<SampleRow>& rows,
                            const std::vector<LogitEdit>& edits = {}, const std::vector<uint32_t>& masks = {}) {
  std::vector<Sampled> out(rows.size());
  t.ops->sample(logits.view(), {rows, edits, masks}, out);
  return out;
}

// One row of its own, `row.logits` is 0.
Sampled sample_one(Conformance& t, const Logits& logits, const SampleRow& row,
                   const std::vector<LogitEdit>& edits = {}) {
  Rows device = upload(t, {logits});
  return sample(t, device, {row}, edits)[0];
}

Logits random_logits(int64_t vocab, float deviation = 2) {
  Logits v(static_cast<size_t>(vocab));
  for (float& x : v) x = normal(0, deviation);
  return v;
}

// ln softmax(logits)[id], and what float32 exponentials of two ulp and float32 differences may be off by.
struct LogProbability {
  double value, error;
};
LogProbability log_softmax(const Logits& logits, int32_t id) {
  const double largest = double{*std::max_element(logits.begin(), logits.end())};
  double total = 0, error = 0;
  for (const float l : logits) total += std::exp(double{l} - largest);
  for (const float l : logits)
    if (const double p = std::exp(double{l} - largest) / total; p > 0)
      error += p * (std::abs(double{l} - largest) * 0x1p-24 + 2 * 0x1p-23);
  const double value = double{logits[static_cast<size_t>(id)]} - largest - std::log(total);
  return {value, error + 0x1p-40 + (std::isfinite(value) ? std::abs(value) * 0x1p-50 : 0)};
}
void expect_likelihood(const sampling::Likelihood& got, const Logits& logits, int32_t id) {
  EXPECT_EQ(got.token, id);
  const LogProbability exact = log_softmax(logits, id);
  if (std::isinf(exact.value))
    EXPECT_EQ(got.logprob, -INFINITY);
  else
    EXPECT_NEAR(double{got.logprob}, exact.value, exact.error + std::abs(exact.value) * 0x1p-24);
}

TEST_P(Conformance, GreedyTakesTheFirstOfTheLargest) {
  for (const int64_t vocab : {1, 5, 31, 1024, 1025, 5000, 151936}) {
    std::vector<Logits> rows(4, random_logits(vocab));
    std::vector<int32_t> expected;
    for (Logits& row : rows) {
      std::uniform_int_distribution<int64_t> any(0, vocab - 1);
      const float top = *std::max_element(row.begin(), row.end()) + 1;
      int64_t first = vocab;
      for (int i = 0; i < 5; ++i) {
        const int64_t at = any(random());
        row[static_cast<size_t>(at)] = top;
        first = std::min(first, at);
      }
      expected.push_back(static_cast<int32_t>(first));
    }
    Rows logits = upload(*this, rows);
    const Rows before = logits;
    const auto out = sample(*this, logits, {{.logits = 0}, {.logits = 1}, {.logits = 2}, {.logits = 3}});
    for (size_t i = 0; i < out.size(); ++i) {
      EXPECT_EQ(out[i].token, expected[i]) << "of " << vocab;
      EXPECT_EQ(out[i].problem, Sampled::Problem::none);
      EXPECT_EQ(out[i].largest, rows[i][static_cast<size_t>(expected[i])]);
    }
    EXPECT_TRUE(logits.same_bytes(before));  // nothing to edit
  }
  EXPECT_EQ(sample_one(*this, {-1, -0.0f, 0.0f, -0.0f}, {}).token, 1);  // equal numbers of two signs
  EXPECT_EQ(sample_one(*this, {1, 5, -INFINITY, 5, 0}, {}).token, 1);
  EXPECT_EQ(sample_one(*this, {-INFINITY, -INFINITY, -3}, {}).token, 2);
  EXPECT_EQ(sample_one(*this, {-3e38f, -3.1e38f}, {}).token, 0);
}

TEST_P(Conformance, NaNAndInfiniteLogitsAreReported) {
  for (const double temperature : {0.0, 1.0})
    for (const int scores : {-1, 2}) {
      const SampleRow row{.top_logprobs = scores, .temperature = temperature};
      for (const int64_t vocab : {2, 33, 3000})
        for (const bool last : {false, true}) {
          Logits logits = random_logits(vocab);
          float& one = last ? logits.back() : logits.front();
          one = NAN;
          Sampled s = sample_one(*this, logits, row);
          EXPECT_EQ(s.problem, Sampled::Problem::nan) << vocab;
          EXPECT_EQ(s.token, -1);
          EXPECT_THROW(sampling::checked_token(s, 7), Error);
          one = INFINITY;
          s = sample_one(*this, logits, row);
          EXPECT_EQ(s.problem, Sampled::Problem::not_finite) << vocab;
          EXPECT_EQ(s.token, -1);
          EXPECT_EQ(s.largest, INFINITY);
          s = sample_one(*this, Logits(static_cast<size_t>(vocab), -INFINITY), row);
          EXPECT_EQ(s.problem, Sampled::Problem::not_finite) << vocab;
          EXPECT_EQ(s.token, -1);
          EXPECT_EQ(s.largest, -INFINITY);
        }
      // A broken row does not disturb its neighbours.
      Rows logits = upload(*this, {{1, NAN, 2}, {1, 3, -9}, {INFINITY, 0, 0}});
      const auto out = sample(*this, logits, {{.logits = 0}, {.logits = 1}, {.logits = 2}});
      EXPECT_EQ(out[0].problem, Sampled::Problem::nan);
      EXPECT_EQ(out[1].token, 1);
      EXPECT_EQ(out[2].problem, Sampled::Problem::not_finite);
      // Everything banned.
      std::vector<LogitEdit> edits{{.token = 0, .banned = true}, {.token = 1, .banned = true}};
      EXPECT_EQ(sample_one(*this, {1, 2}, {.num_edits = 2, .temperature = temperature}, edits).problem,
                Sampled::Problem::not_finite);
    }
}

TEST_P(Conformance, EditsChangeTheLogitsInOrder) {
  const std::vector<Logits> before{random_logits(40), random_logits(40), random_logits(40)};
  std::vector<LogitEdit> edits;
  std::uniform_int_distribution<int32_t> any(-3, 45);  // some outside the vocabulary: skipped
  for (int i = 0; i < 90; ++i) {
    LogitEdit e{.token = any(random())};
    if (i % 2 == 0) e.bias = normal(0, 3);
    if (i % 3 == 0) e.repetition = 0.5 + 0.01 * i;
    if (i % 5 == 0) e.subtract = 0.25 * i - 3;
    e.banned = i % 17 == 0;
    edits.push_back(e);
  }
  // Rows 2 and 0 with edits of their own, which overlap; row 1 without.
  const std::vector<SampleRow> rows{
      {.logits = 2, .first_edit = 10, .num_edits = 80}, {.logits = 1}, {.logits = 0, .first_edit = 0, .num_edits = 40}};
  Rows logits = upload(*this, before);
  const auto out = sample(*this, logits, rows, edits);
  for (size_t i = 0; i < rows.size(); ++i) {
    const SampleRow& row = rows[i];
    std::vector<double> exact(before[static_cast<size_t>(row.logits)].begin(),
                              before[static_cast<size_t>(row.logits)].end());
    std::vector<double> error(exact.size(), 0);
    for (int32_t e = row.first_edit; e < row.first_edit + row.num_edits; ++e) {
      const LogitEdit& edit = edits[static_cast<size_t>(e)];
      if (edit.token < 0 || edit.token >= 40) continue;
      double &v = exact[static_cast<size_t>(edit.token)], &off = error[static_cast<size_t>(edit.token)];
      // Each of the three steps rounds once; a product or quotient scales what was off before.
      const auto round = [&] { off += std::abs(v) * 0x1p-24; };
      v += double{edit.bias}, round();
      const double factor = v > 0 ? 1 / edit.repetition : edit.repetition;
      v *= factor, off *= factor, round();
      v -= edit.subtract, round();
      if (edit.banned) v = -INFINITY, off = 0;
    }
    size_t best = 0;
    for (size_t c = 0; c < exact.size(); ++c) {
      const double got = logits.at(row.logits, static_cast<int64_t>(c));
      if (std::isinf(exact[c]))
        EXPECT_EQ(got, -INFINITY);
      else
        EXPECT_NEAR(got, exact[c], error[c]) << "row " << row.logits << " token " << c;
      if (got > logits.at(row.logits, static_cast<int64_t>(best))) best = c;
    }
    EXPECT_EQ(out[i].token, static_cast<int32_t>(best));
    EXPECT_EQ(double{out[i].largest}, logits.at(row.logits, static_cast<int64_t>(best)));
  }
  EXPECT_TRUE(logits.gaps_untouched());
}

TEST_P(Conformance, LogProbabilitiesAreThoseBeforeTheEdits) {
  for (const int64_t vocab : {1, 5, 1025, 20000})
    for (const double temperature : {0.0, 0.7}) {
      Logits logits = random_logits(vocab);
      const auto last = static_cast<size_t>(vocab) - 1;
      if (vocab > 4) logits[2] = logits[last] = 20, logits[3] = -INFINITY;  // the likeliest, and a tie
      for (const int top : {0, 3, 20})
        for (const bool edited : {false, true}) {
          SCOPED_TRACE(fmt::format("vocab {} temperature {} top {} edited {}", vocab, temperature, top, edited));
          const std::vector<LogitEdit> edits{{.token = 2, .banned = true}, {.token = 0, .bias = 3}};
          const Sampled s = sample_one(
              *this, logits,
              {.num_edits = edited ? 2 : 0, .top_logprobs = top, .temperature = temperature, .seed = 5, .position = 9},
              edits);
          ASSERT_EQ(s.problem, Sampled::Problem::none);
          if (edited && vocab > 4) {
            EXPECT_NE(s.token, 2);
          }
          expect_likelihood(s.logprob.chosen, logits, s.token);
          std::vector<int32_t> ids(static_cast<size_t>(vocab));
          for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i);
          std::stable_sort(ids.begin(), ids.end(), [&](int32_t a, int32_t b) {
            return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)];
          });
          ASSERT_EQ(s.logprob.top.size(), static_cast<size_t>(std::min<int64_t>(top, vocab)));
          for (size_t i = 0; i < s.logprob.top.size(); ++i) expect_likelihood(s.logprob.top[i], logits, ids[i]);
        }
    }
}

TEST_P(Conformance, ForcedRowsAreScored) {
  const Logits logits = random_logits(700);
  Rows device = upload(*this, {logits, logits, logits});
  const auto out = sample(*this, device,
                          {{.logits = 0, .forced = 0, .top_logprobs = 0},
                           {.logits = 1, .forced = 699, .top_logprobs = 2, .temperature = 1},
                           {.logits = 2, .forced = 350}});
  EXPECT_EQ(out[0].token, 0);
  EXPECT_EQ(out[1].token, 699);
  EXPECT_EQ(out[2].token, 350);
  expect_likelihood(out[0].logprob.chosen, logits, 0);
  expect_likelihood(out[1].logprob.chosen, logits, 699);
  EXPECT_TRUE(out[0].logprob.top.empty());
  ASSERT_EQ(out[1].logprob.top.size(), 2u);
  const auto best = static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  expect_likelihood(out[1].logprob.top[0], logits, best);
  for (const Sampled& s : out) EXPECT_EQ(s.problem, Sampled::Problem::none);
  // -infinity is a log probability too.
  const Sampled never = sample_one(*this, {1, -INFINITY, 0}, {.forced = 1, .top_logprobs = 0});
  EXPECT_EQ(never.token, 1);
  EXPECT_EQ(never.logprob.chosen.logprob, -INFINITY);
}

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

// Frequencies over many positions: within six standard deviations, and a few counts where hardly any are expected.
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
    // Two masks more than rows that have one; what lies behind the vocabulary in the last word means nothing.
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
      row.temperature = i < 4 ? 0 : 1.5;
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

TEST_P(Conformance, LogLikelihoods) {
  for (const int64_t vocab : {1, 7, 1024, 1025, 151936})
    for (const float deviation : {2.0f, 30.0f}) {
      const int rows = 3;
      std::vector<Logits> all;
      std::vector<int32_t> ids;
      for (int r = 0; r < rows; ++r) {
        all.push_back(random_logits(vocab, deviation));
        ids.push_back(std::uniform_int_distribution<int32_t>(0, static_cast<int32_t>(vocab) - 1)(random()));
      }
      if (vocab > 1) all[0][0] = -INFINITY;
      Rows logits = upload(*this, all);
      const Rows before = logits;
      std::vector<double> out(rows, NAN);
      ops->log_likelihoods(logits.view(), ids, out);
      for (size_t r = 0; r < out.size(); ++r) {
        const LogProbability exact = log_softmax(all[r], ids[r]);
        if (std::isinf(exact.value))
          EXPECT_EQ(out[r], exact.value);
        else
          EXPECT_NEAR(out[r], exact.value, exact.error) << vocab;
        std::vector<double> alone(1, NAN);
        ops->log_likelihoods(logits.view(static_cast<int64_t>(r), 1), {&ids[r], 1}, alone);
        EXPECT_EQ(alone[0], out[r]) << "row " << r << " alone";
      }
      EXPECT_TRUE(logits.same_bytes(before));
    }
  // ln softmax of a token without probability, of equal logits, of far ones; rows that hold a NaN.
  Rows logits =
      upload(*this, {{0, -INFINITY, 0, 0}, {5, 5, 5, 5}, {-3e38f, 3e38f, 0, 0}, {0, 1, 2, NAN}, {NAN, 1, 2, 3}});
  std::vector<double> out(5, 1);
  const std::vector<int32_t> ids{1, 2, 1, 0, 1};
  ops->log_likelihoods(logits.view(), ids, out);
  EXPECT_EQ(out[0], -INFINITY);
  EXPECT_NEAR(out[1], -std::log(4.0), 2 * 0x1p-23);
  EXPECT_EQ(out[2], 0);
  EXPECT_TRUE(std::isnan(out[3]));
  EXPECT_TRUE(std::isnan(out[4]));
  ops->log_likelihoods(logits.view(0, 0), {}, {});
}

}  // namespace
}  // namespace sluice::ops
