// SPDX-License-Identifier: Apache-2.0
#include "model/perplexity.h"

#include <cmath>

#include "model/windows.h"
#include "ops/clones.h"
#include "ops/exp.h"
#include "ops/parallel.h"

namespace sluice::model {

namespace {
// sum of exp(x - largest), in sixteen double lanes: float32 exponentials are accurate to 1e-7, a float32 sum of a
// hundred thousand of them would not be.
SLUICE_CLONES double exp_sum(const float* x, int64_t n, float largest) {
  double lanes[16] = {};
  int64_t i = 0;
  for (; i + 16 <= n; i += 16)
    for (int j = 0; j < 16; ++j) lanes[j] += static_cast<double>(ops::exp_float(x[i + j] - largest));
  for (; i < n; ++i) lanes[0] += static_cast<double>(ops::exp_float(x[i] - largest));
  double sum = 0;
  for (const double lane : lanes) sum += lane;
  return sum;
}

double negative_log_likelihood(const float* logits, int64_t vocab, int32_t id) {
  float largest = logits[0];
  for (int64_t i = 1; i < vocab; ++i) largest = logits[i] > largest ? logits[i] : largest;
  return std::log(exp_sum(logits, vocab, largest)) - (static_cast<double>(logits[id]) - static_cast<double>(largest));
}
}  // namespace

double Perplexity::value() const { return std::exp(nll_sum / static_cast<double>(scored_tokens)); }

Perplexity perplexity(Context& ctx, const Model& model, std::span<const int32_t> ids, int64_t window) {
  check(ids.size() >= 2, "the text has {} tokens; at least 2 are needed to score one", ids.size());
  check(window >= 2, "window is {} tokens; it must be 2 or more", window);
  const int64_t vocab = model.info().vocab;
  const auto total = static_cast<int64_t>(ids.size());
  Perplexity out;
  std::vector<double> nll;
  run_windows(ctx, model, ids, window, true, nullptr, "evaluating", [&](const WindowPiece& piece) {
    // Row r predicts the token after it, unless that one begins the next window or there is none.
    const auto rows = static_cast<int64_t>(piece.ids.size());
    nll.assign(piece.ids.size(), 0.0);
    const auto scored = [&](int64_t r) { return (piece.begin + r + 1) % window != 0 && piece.begin + r + 1 < total; };
    ops::parallel_rows(ctx, rows, vocab * 16, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r)
        if (scored(r))
          nll[static_cast<size_t>(r)] =
              negative_log_likelihood(piece.logits + r * vocab, vocab, ids[static_cast<size_t>(piece.begin + r + 1)]);
    });
    for (int64_t r = 0; r < rows; ++r) {
      const double value = nll[static_cast<size_t>(r)];
      check_file(value == value, "the logits at position {} hold a NaN; the weights or their scales are broken",
                 piece.begin + r);
      out.scored_tokens += scored(r) ? 1 : 0;
      out.nll_sum += value;
    }
  });
  return out;
}

}  // namespace sluice::model
