// SPDX-License-Identifier: Apache-2.0
// How well a model predicts a text: consecutive windows, each alone from position 0, every token but a window's first
// scored (the protocol of the checkpoints' cards).
#pragma once

#include <span>
#include <vector>

#include "model/model.h"

namespace sluice::model {

struct Perplexity {
  int64_t scored_tokens = 0;
  double nll_sum = 0;              // sum of -ln p
  std::vector<double> window_nll;  // the part of each window in nll_sum: two runs' differ by noise that these show
  double value() const;            // exp(nll_sum / scored_tokens)
};

// Reports progress in tokens. Throws invalid_argument: fewer than two tokens, window < 2 or longer than the model's
// positions, ids outside the vocabulary.
Perplexity perplexity(Context& ctx, const Model& model, std::span<const int32_t> ids, int64_t window = 512);

}  // namespace sluice::model
