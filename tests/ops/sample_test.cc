// SPDX-License-Identifier: Apache-2.0
// Greedy tokens, edits of logits, and log probabilities against double precision.
#include "tests/ops/sampling.h"

namespace sluice::ops {
namespace {

using sampling::LogitEdit;
using sampling::Sampled;
using sampling::SampleRow;

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
