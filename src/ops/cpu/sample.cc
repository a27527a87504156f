// SPDX-License-Identifier: Apache-2.0
// From logits to tokens and log probabilities: one row per task.
#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/cpu/clones.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/exp.h"
#include "ops/cpu/parallel.h"

namespace sluice::ops::cpu {

namespace {
// The sum of exp(x - largest), in sixteen double lanes: float32 exponentials are accurate to 1e-7, a float32 sum of a
// hundred thousand of them would not be.
SLUICE_CLONES double exp_sum(const float* x, int64_t n, float largest) {
  double lanes[16] = {};
  int64_t i = 0;
  for (; i + 16 <= n; i += 16)
    for (int j = 0; j < 16; ++j) lanes[j] += static_cast<double>(exp_float(x[i + j] - largest));
  for (; i < n; ++i) lanes[0] += static_cast<double>(exp_float(x[i] - largest));
  double sum = 0;
  for (const double lane : lanes) sum += lane;
  return sum;
}

double log_likelihood(const float* logits, int64_t vocab, int32_t id) {
  float largest = logits[0];
  for (int64_t i = 1; i < vocab; ++i) largest = logits[i] > largest ? logits[i] : largest;
  return (static_cast<double>(logits[id]) - static_cast<double>(largest)) - std::log(exp_sum(logits, vocab, largest));
}
}  // namespace

void CpuOps::sample(Matrix logits, const sampling::SampleBatch& batch, std::span<sampling::Sampled> out) {
  const auto rows = static_cast<int64_t>(batch.rows.size());
  parallel(ctx(), rows, rows * logits.cols * 2, [&](int64_t i, int worker) {
    const sampling::SampleRow& row = batch.rows[static_cast<size_t>(i)];
    auto* values = static_cast<float*>(logits.row(row.logits));
    sampling::choose_token(row, batch, {values, static_cast<size_t>(logits.cols)},
                           scratch_[static_cast<size_t>(worker)], out[static_cast<size_t>(i)]);
  });
}

// Nothing runs beside the host here: the results wait for end_sample().
void CpuOps::begin_sample(Matrix logits, const sampling::SampleBatch& batch) {
  check(batches_begun_ - batches_ended_ < 2, "{} batches are begun; their results must be taken first",
        batches_begun_ - batches_ended_);
  std::vector<sampling::Sampled>& results = begun_[batches_begun_++ % 2];
  results.resize(batch.rows.size());
  sample(logits, batch, results);
}

void CpuOps::end_sample(std::span<sampling::Sampled> out) {
  check(batches_ended_ < batches_begun_, "no batch was begun");
  const std::vector<sampling::Sampled>& results = begun_[batches_ended_++ % 2];
  std::copy_n(results.begin(), std::min(results.size(), out.size()), out.begin());
}

void CpuOps::take_sampled(int32_t* ids, int64_t count) {
  const std::vector<sampling::Sampled>& results = begun_[(batches_begun_ + 1) % 2];
  for (int64_t i = 0; i < count; ++i)
    if (ids[i] < 0) ids[i] = std::max(results.at(static_cast<size_t>(~ids[i])).token, 0);
}

std::shared_ptr<Event> CpuOps::move_batch(const BatchMove& move) {
  for (const BatchMove::Piece& p : move.pieces) std::copy_n(move.from + p.first, p.count, move.to + p.first);
  if (!move.pieces.empty()) take_sampled(move.to + move.pieces[0].first, move.pieces[0].count);
  return ctx().queue.record();
}

void CpuOps::log_likelihoods(ConstMatrix logits, std::span<const int32_t> ids, std::span<double> out) {
  const auto rows = static_cast<int64_t>(ids.size());
  parallel(ctx(), rows, rows * logits.cols * 16, [&](int64_t i, int) {
    const auto at = static_cast<size_t>(i);
    out[at] = log_likelihood(static_cast<const float*>(logits.row(i)), logits.cols, ids[at]);
  });
}

}  // namespace sluice::ops::cpu
