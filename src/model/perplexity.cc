// SPDX-License-Identifier: Apache-2.0
#include "model/perplexity.h"

#include <cmath>

#include "model/windows.h"

namespace sluice::model {

double Perplexity::value() const { return std::exp(nll_sum / static_cast<double>(scored_tokens)); }

Perplexity perplexity(Context& ctx, const Model& model, std::span<const int32_t> ids, int64_t window) {
  check(ids.size() >= 2, "the text has {} tokens; at least 2 are needed to score one", ids.size());
  check(window >= 2, "window is {} tokens; it must be 2 or more", window);
  const auto total = static_cast<int64_t>(ids.size());
  Perplexity out;
  std::vector<double> likelihoods;
  run_windows(ctx, model, ids, window, true, nullptr, "evaluating", [&](const WindowPiece& piece) {
    // Row r predicts the token after it, unless that one begins the next window or there is none: the last row of a
    // window's last piece.
    const auto rows = static_cast<int64_t>(piece.ids.size());
    const int64_t end = piece.begin + rows;
    const int64_t scored = rows - (end % window == 0 || end == total ? 1 : 0);
    const auto count = static_cast<size_t>(scored);
    likelihoods.resize(count);
    piece.runner.log_likelihoods(ids.subspan(static_cast<size_t>(piece.begin) + 1, count), likelihoods);
    const auto at = static_cast<size_t>(piece.begin / window);
    if (at >= out.window_nll.size()) out.window_nll.resize(at + 1);
    for (int64_t r = 0; r < scored; ++r) {
      const double value = likelihoods[static_cast<size_t>(r)];
      check_file(value == value, "the logits at position {} hold a NaN; the weights or their scales are broken",
                 piece.begin + r);
      out.nll_sum -= value;
      out.window_nll[at] -= value;
    }
    out.scored_tokens += scored;
  });
  return out;
}

}  // namespace sluice::model
