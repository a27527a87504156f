// SPDX-License-Identifier: Apache-2.0
#include "sampling/history.h"

namespace sluice::sampling {

void History::apply(const Penalties& p, std::span<float> logits) const {
  for (const auto& [token, count] : seen_) {
    if (token < 0 || static_cast<size_t>(token) >= logits.size()) continue;
    double logit = logits[static_cast<size_t>(token)];
    logit = logit > 0 ? logit / p.repetition : logit * p.repetition;
    if (count > 0) logit -= p.frequency * count + p.presence;
    logits[static_cast<size_t>(token)] = static_cast<float>(logit);
  }
}

}  // namespace sluice::sampling
