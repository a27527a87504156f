// SPDX-License-Identifier: Apache-2.0
// Rows of logits on the device of a conformance test, and tokens from them.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "tests/ops/conformance.h"

namespace sluice::ops {

using Logits = std::vector<float>;

inline Rows upload(Conformance& t, const std::vector<Logits>& rows) {
  Rows logits = t.rows(DType::f32, static_cast<int64_t>(rows.size()), static_cast<int64_t>(rows.at(0).size()));
  for (size_t r = 0; r < rows.size(); ++r)
    for (size_t c = 0; c < rows[r].size(); ++c)
      logits.set(static_cast<int64_t>(r), static_cast<int64_t>(c), double{rows[r][c]});
  return logits;
}

inline std::vector<sampling::Sampled> sample(Conformance& t, Rows& logits, const std::vector<sampling::SampleRow>& rows,
                                             const std::vector<sampling::LogitEdit>& edits = {},
                                             const std::vector<uint32_t>& masks = {}) {
  std::vector<sampling::Sampled> out(rows.size());
  t.ops->sample(logits.view(), {rows, edits, masks}, out);
  return out;
}

// One row of its own, `row.logits` is 0.
inline sampling::Sampled sample_one(Conformance& t, const Logits& logits, const sampling::SampleRow& row,
                                    const std::vector<sampling::LogitEdit>& edits = {}) {
  Rows device = upload(t, {logits});
  return sample(t, device, {row}, edits)[0];
}

inline Logits random_logits(int64_t vocab, float deviation = 2) {
  Logits v(static_cast<size_t>(vocab));
  for (float& x : v) x = normal(0, deviation);
  return v;
}

// ln softmax(logits)[id], and what float32 exponentials of two ulp and float32 differences may be off by.
struct LogProbability {
  double value, error;
};
inline LogProbability log_softmax(const Logits& logits, int32_t id) {
  const double largest = double{*std::max_element(logits.begin(), logits.end())};
  double total = 0, error = 0;
  for (const float l : logits) total += std::exp(double{l} - largest);
  for (const float l : logits)
    if (const double p = std::exp(double{l} - largest) / total; p > 0)
      error += p * (std::abs(double{l} - largest) * 0x1p-24 + 2 * 0x1p-23);
  const double value = double{logits[static_cast<size_t>(id)]} - largest - std::log(total);
  return {value, error + 0x1p-40 + (std::isfinite(value) ? std::abs(value) * 0x1p-50 : 0)};
}
inline void expect_likelihood(const sampling::Likelihood& got, const Logits& logits, int32_t id) {
  EXPECT_EQ(got.token, id);
  const LogProbability exact = log_softmax(logits, id);
  if (std::isinf(exact.value))
    EXPECT_EQ(got.logprob, -INFINITY);
  else
    EXPECT_NEAR(double{got.logprob}, exact.value, exact.error + std::abs(exact.value) * 0x1p-24);
}

}  // namespace sluice::ops
