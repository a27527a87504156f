// SPDX-License-Identifier: Apache-2.0
#include "sampling/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"

namespace sluice::sampling {

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

int32_t largest(std::span<const float> logits, int64_t position) {
  size_t best = 0;
  bool nan = false;
  for (size_t i = 0; i < logits.size(); ++i) {
    nan |= logits[i] != logits[i];
    if (logits[i] > logits[best]) best = i;
  }
  check_file(!nan, "the logits at position {} hold a NaN; the weights or their scales are broken", position);
  check(std::isfinite(logits[best]), "the largest logit at position {} is {}; a finite one is needed to choose a token",
        position, logits[best]);
  return static_cast<int32_t>(best);
}
}  // namespace

void validate(const SamplingOptions& o, int64_t vocab) {
  check(o.temperature >= 0 && std::isfinite(o.temperature), "temperature is {}; accepted: 0 or more, finite",
        o.temperature);
  check(o.top_k >= 0, "top_k is {}; accepted: 0 (all) or more", o.top_k);
  check(o.top_p > 0 && o.top_p <= 1, "top_p is {}; accepted: more than 0, at most 1", o.top_p);
  check(o.min_p >= 0 && o.min_p <= 1, "min_p is {}; accepted: 0 to 1", o.min_p);
  check(o.repetition_penalty > 0 && o.repetition_penalty <= 2,
        "repetition_penalty is {}; accepted: more than 0, at most 2", o.repetition_penalty);
  check(o.frequency_penalty >= -2 && o.frequency_penalty <= 2, "frequency_penalty is {}; accepted: -2 to 2",
        o.frequency_penalty);
  check(o.presence_penalty >= -2 && o.presence_penalty <= 2, "presence_penalty is {}; accepted: -2 to 2",
        o.presence_penalty);
  for (const auto& [token, bias] : o.logit_bias) {
    check(token >= 0 && (vocab == 0 || token < vocab), "logit_bias names token {}; accepted: 0 to {}", token,
          vocab > 0 ? vocab - 1 : std::numeric_limits<int32_t>::max());
    check(bias >= -100 && bias <= 100, "logit_bias of token {} is {}; accepted: -100 to 100", token, bias);
  }
}

Sampler::Sampler(SamplingOptions options) : options_(std::move(options)) { validate(options_); }

bool Sampler::needs_history() const {
  return options_.repetition_penalty != 1 || options_.frequency_penalty != 0 || options_.presence_penalty != 0;
}

void Sampler::see_prompt(std::span<const int32_t> tokens) {
  if (options_.repetition_penalty == 1) return;  // the only one that counts them
  for (const int32_t token : tokens) history_.add_prompt(token);
}

void Sampler::see(int32_t token) {
  if (needs_history()) history_.add(token);
}

int32_t Sampler::sample(std::span<float> logits, int64_t position, std::span<const int32_t> banned) {
  for (const auto& [token, bias] : options_.logit_bias)
    if (static_cast<size_t>(token) < logits.size()) logits[static_cast<size_t>(token)] += bias;
  if (needs_history())
    history_.apply({options_.repetition_penalty, options_.frequency_penalty, options_.presence_penalty}, logits);
  for (const int32_t token : banned)
    if (token >= 0 && static_cast<size_t>(token) < logits.size())
      logits[static_cast<size_t>(token)] = -std::numeric_limits<float>::infinity();
  const int32_t best = largest(logits, position);
  return options_.temperature == 0 ? best : draw(logits, best, position);
}

int32_t Sampler::draw(std::span<const float> logits, int32_t best, int64_t position) {
  const float top = logits[static_cast<size_t>(best)];
  const auto weight = [&](float logit) { return std::exp((static_cast<double>(logit) - top) / options_.temperature); };
  candidates_.clear();
  candidates_.reserve(logits.size());
  for (size_t i = 0; i < logits.size(); ++i) candidates_.push_back({logits[i], static_cast<int32_t>(i)});
  // Descending, ties by id: the same order on every machine.
  const auto before = [](const Candidate& a, const Candidate& b) {
    return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
  };
  const auto at = [&](size_t i) { return candidates_.begin() + static_cast<std::ptrdiff_t>(i); };
  size_t count = candidates_.size();
  if (options_.top_k > 0 && static_cast<size_t>(options_.top_k) < count) {
    count = static_cast<size_t>(options_.top_k);
    std::nth_element(candidates_.begin(), at(count), candidates_.end(), before);
    std::sort(candidates_.begin(), at(count), before);
  }
  double total = 0;
  for (size_t i = 0; i < count; ++i) total += weight(candidates_[i].logit);
  if (options_.top_p < 1) {
    // The nucleus is mostly small: sort only as many of the likeliest as it takes.
    size_t sorted = 0, kept = 0;
    double mass = 0;
    while (kept < count && (kept == 0 || mass < options_.top_p * total)) {
      if (kept == sorted) {
        const size_t end = std::min(count, std::max<size_t>(64, sorted * 4));
        if (end < count) std::nth_element(at(sorted), at(end), at(count), before);
        std::sort(at(sorted), at(end), before);
        sorted = end;
      }
      mass += weight(candidates_[kept++].logit);
    }
    count = kept;
    total = mass;
  }
  if (options_.min_p > 0) {
    const auto end = std::remove_if(candidates_.begin(), at(count),
                                    [&](const Candidate& c) { return weight(c.logit) < options_.min_p; });
    count = static_cast<size_t>(end - candidates_.begin());
    total = 0;
    for (size_t i = 0; i < count; ++i) total += weight(candidates_[i].logit);
  }
  double rest = coin(options_.seed, position) * total;
  for (size_t i = 0; i < count; ++i) {
    rest -= weight(candidates_[i].logit);
    if (rest < 0) return candidates_[i].id;
  }
  return best;  // rounding left a rest
}

}  // namespace sluice::sampling
