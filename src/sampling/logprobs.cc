// SPDX-License-Identifier: Apache-2.0
#include "sampling/logprobs.h"

#include <algorithm>
#include <cmath>

namespace sluice::sampling {

TokenLogprob logprob_of(std::span<const float> logits, int32_t token, int top) {
  const double best = *std::max_element(logits.begin(), logits.end());
  double total = 0;
  for (const float logit : logits) total += std::exp(logit - best);
  const double log_total = best + std::log(total);
  const auto likelihood = [&](int32_t id) {
    return Likelihood{id, static_cast<float>(logits[static_cast<size_t>(id)] - log_total)};
  };
  TokenLogprob out{likelihood(token), {}};
  // `top` is small: an insertion into a sorted list beats sorting the vocabulary.
  std::vector<int32_t> ids;
  ids.reserve(static_cast<size_t>(top) + 1);
  for (int32_t id = 0; top > 0 && id < static_cast<int32_t>(logits.size()); ++id) {
    const auto logit_of = [&](int32_t i) { return logits[static_cast<size_t>(i)]; };
    if (ids.size() == static_cast<size_t>(top) && !(logit_of(id) > logit_of(ids.back()))) continue;
    ids.insert(
        std::upper_bound(ids.begin(), ids.end(), id, [&](int32_t a, int32_t b) { return logit_of(a) > logit_of(b); }),
        id);
    if (ids.size() > static_cast<size_t>(top)) ids.pop_back();
  }
  for (const int32_t id : ids) out.top.push_back(likelihood(id));
  return out;
}

}  // namespace sluice::sampling
