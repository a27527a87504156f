// SPDX-License-Identifier: Apache-2.0
#include "model/sampler.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace sluice::model {

namespace {
// Uniform in [0, 1) from (seed, position): two rounds of splitmix64's finaliser (Steele et al., 2014).
double coin(uint64_t seed, int64_t position) {
  const auto mix = [](uint64_t z) {
    z += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  };
  return static_cast<double>(mix(mix(seed) ^ static_cast<uint64_t>(position)) >> 11) * 0x1p-53;
}

int32_t greedy(const float* logits, int64_t vocab, int64_t position) {
  int64_t best = 0;
  bool nan = false;
  for (int64_t i = 0; i < vocab; ++i) {
    nan |= logits[i] != logits[i];
    if (logits[i] > logits[best]) best = i;
  }
  check(!nan, "the logits at position {} hold a NaN; the weights or their scales are broken", position);
  return static_cast<int32_t>(best);
}
}  // namespace

void validate(const SamplingOptions& o) {
  check(o.temperature >= 0 && std::isfinite(o.temperature), "temperature is {}; it must be 0 or more", o.temperature);
  check(o.top_k >= 0, "top_k is {}; it must be 0 (all) or more", o.top_k);
  check(o.top_p > 0 && o.top_p <= 1, "top_p is {}; it must be in (0, 1]", o.top_p);
}

Sampler::Sampler(const SamplingOptions& options) : options_(options) { validate(options); }

int32_t Sampler::sample(const float* logits, int64_t vocab, int64_t position) {
  const int32_t best = greedy(logits, vocab, position);
  if (options_.temperature == 0) return best;
  candidates_.clear();
  for (int64_t i = 0; i < vocab; ++i) candidates_.push_back({logits[i], static_cast<int32_t>(i)});
  // Descending, ties by id: the same order on every machine.
  const auto before = [](const Candidate& a, const Candidate& b) {
    return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
  };
  const auto keep = static_cast<size_t>(options_.top_k == 0 ? vocab : std::min(options_.top_k, vocab));
  if (keep < candidates_.size()) {
    std::nth_element(candidates_.begin(), candidates_.begin() + static_cast<std::ptrdiff_t>(keep), candidates_.end(),
                     before);
    candidates_.resize(keep);
  }
  std::sort(candidates_.begin(), candidates_.end(), before);
  const auto probability = [&](const Candidate& c) {
    return std::exp((static_cast<double>(c.logit) - logits[best]) / options_.temperature);
  };
  double total = 0;
  for (const Candidate& c : candidates_) total += probability(c);
  double nucleus = 0;
  size_t count = 0;
  while (count < candidates_.size() && (count == 0 || nucleus < options_.top_p * total))
    nucleus += probability(candidates_[count++]);
  double rest = coin(options_.seed, position) * nucleus;
  for (size_t i = 0; i < count; ++i) {
    rest -= probability(candidates_[i]);
    if (rest < 0) return candidates_[i].id;
  }
  return candidates_[count - 1].id;
}

}  // namespace sluice::model
