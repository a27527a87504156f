// SPDX-License-Identifier: Apache-2.0
#include "sampling/sampler.h"

#include <cmath>
#include <limits>

#include "base/error.h"

namespace sluice::sampling {

void validate(const SamplingOptions& o, int64_t vocab) {
  check(o.temperature >= 0 && std::isfinite(o.temperature), "temperature is {}; accepted: 0 or more, finite",
        o.temperature);
  check(o.top_k >= 0, "top_k is {}; accepted: 0 (all) or more", o.top_k);
  check(o.top_p > 0 && o.top_p <= 1, "top_p is {}; accepted: more than 0, at most 1", o.top_p);
  check(o.min_p >= 0 && o.min_p <= 1, "min_p is {}; accepted: 0 to 1", o.min_p);
  check(o.repetition_penalty >= kLeastRepetitionPenalty && o.repetition_penalty <= 2,
        "repetition_penalty is {}; accepted: {} to 2", o.repetition_penalty, kLeastRepetitionPenalty);
  check(o.frequency_penalty >= -2 && o.frequency_penalty <= 2, "frequency_penalty is {}; accepted: -2 to 2",
        o.frequency_penalty);
  check(o.presence_penalty >= -2 && o.presence_penalty <= 2, "presence_penalty is {}; accepted: -2 to 2",
        o.presence_penalty);
  for (const auto& [token, bias] : o.logit_bias) {
    check(token >= 0 && (vocab == 0 || token < vocab), "logit_bias names token {}; accepted: 0 to {}", token,
          vocab > 0 ? vocab - 1 : std::numeric_limits<int32_t>::max());
    check(bias >= -100 && bias <= 100, "logit_bias of token {} is {}; accepted: -100 to 100", token, bias);
  }
  for (const int32_t token : o.allowed_tokens)
    check(token >= 0 && (vocab == 0 || token < vocab), "allowed_tokens names token {}; accepted: 0 to {}", token,
          vocab > 0 ? vocab - 1 : std::numeric_limits<int32_t>::max());
}

Sampler::Sampler(SamplingOptions options, int64_t vocab) : options_(std::move(options)) {
  validate(options_, vocab);
  if (options_.allowed_tokens.empty()) return;
  check(vocab > 0, "allowed_tokens has {} ids, but the size of the vocabulary is not known",
        options_.allowed_tokens.size());
  allowed_mask_.resize(static_cast<size_t>(mask_words(vocab)));
  for (const int32_t token : options_.allowed_tokens)
    allowed_mask_[static_cast<size_t>(token) / 32] |= uint32_t{1} << (token % 32);
}

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

SampleRow Sampler::row(int32_t logits, int64_t position, std::span<const int32_t> banned,
                       std::span<const int32_t> drafts, std::vector<LogitEdit>& edits) const {
  SampleRow row;
  row.logits = logits;
  row.first_edit = static_cast<int32_t>(edits.size());
  for (const auto& [token, bias] : options_.logit_bias) edits.push_back({.token = token, .bias = bias});
  if (needs_history())
    history_.penalize({options_.repetition_penalty, options_.frequency_penalty, options_.presence_penalty}, drafts,
                      edits);
  for (const int32_t token : banned) edits.push_back({.token = token, .banned = true});
  row.num_edits = static_cast<int32_t>(edits.size()) - row.first_edit;
  row.temperature = options_.temperature;
  row.top_k = options_.top_k;
  row.top_p = options_.top_p;
  row.min_p = options_.min_p;
  row.seed = options_.seed;
  row.position = position;
  return row;
}

}  // namespace sluice::sampling
