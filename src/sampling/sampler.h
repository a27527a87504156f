// SPDX-License-Identifier: Apache-2.0
// Logits -> token, for one sequence. The coin depends on seed and position alone, so that neither the batch nor
// speculation nor chunking changes a text.
//
// Order, as in transformers and SGLang: logit_bias, then the three penalties, then temperature, top_k, top_p (within
// what top_k left), min_p (against the likeliest token).
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "sampling/history.h"

namespace sluice::sampling {

struct SamplingOptions {
  double temperature = 0;  // 0: greedy, the first of the largest logits
  int64_t top_k = 0;       // 0: all
  double top_p = 1;        // the smallest set of the likeliest tokens whose probabilities reach it
  uint64_t seed = 0;
  double min_p = 0;                                    // tokens at least so likely as min_p times the likeliest
  double repetition_penalty = 1;                       // divides positive and multiplies negative logits of seen tokens
  double frequency_penalty = 0, presence_penalty = 0;  // subtracted a time, and once, for tokens of the answer
  std::vector<std::pair<int32_t, float>> logit_bias = {};  // token, added to its logit
};
// Throws invalid_argument with one sentence that begins with the option's name. `vocab` bounds logit_bias's tokens; 0:
// not known yet.
void validate(const SamplingOptions& options, int64_t vocab = 0);

class Sampler {
 public:
  // Throws as validate().
  explicit Sampler(SamplingOptions options);

  const SamplingOptions& options() const { return options_; }
  // True when the choice depends on earlier tokens: then see() must be told of every one.
  bool needs_history() const;
  void see_prompt(std::span<const int32_t> tokens);
  void see(int32_t token);

  // logits [vocab], which it may change; position: of the token that is chosen; banned: tokens that must not be.
  // Throws invalid_argument when a logit is NaN or none is finite: broken weights must not end in a silent choice.
  int32_t sample(std::span<float> logits, int64_t position, std::span<const int32_t> banned = {});

 private:
  struct Candidate {
    float logit;
    int32_t id;
  };
  int32_t draw(std::span<const float> logits, int32_t best, int64_t position);

  SamplingOptions options_;
  History history_;
  std::vector<Candidate> candidates_;  // reused
};

}  // namespace sluice::sampling
