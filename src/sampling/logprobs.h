// SPDX-License-Identifier: Apache-2.0
// Logarithms of the model's own probabilities: of the logits as they came, before bias, penalties and temperature.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace sluice::sampling {

struct Likelihood {
  int32_t token = 0;
  float logprob = 0;
};

struct TokenLogprob {
  Likelihood chosen;
  std::vector<Likelihood> top;         // the most likely first, ties by id
  std::vector<Likelihood> asked = {};  // of tokens that the request names, in its order
};

// The likelihood of `token` under softmax(logits), and of the `top` most likely tokens. Sums in double, in the order of
// ids.
TokenLogprob logprob_of(std::span<const float> logits, int32_t token, int top);

}  // namespace sluice::sampling
