// SPDX-License-Identifier: Apache-2.0
// Logits -> token: greedy, or temperature, top-k and top-p with a coin that depends on seed and position alone, so that
// neither the batch nor speculation changes a text.
#pragma once

#include <cstdint>
#include <vector>

namespace sluice::model {

struct SamplingOptions {
  double temperature = 0;  // 0: greedy, the first of the largest logits
  int64_t top_k = 0;       // 0: all
  double top_p = 1;        // the smallest set of the likeliest tokens whose probabilities reach it
  uint64_t seed = 0;
};
void validate(const SamplingOptions& options);  // throws invalid_argument

class Sampler {
 public:
  explicit Sampler(const SamplingOptions& options);
  // logits [vocab]; position: of the token that is chosen. Throws invalid_argument when a logit is NaN: broken weights
  // must not end in a silent choice.
  int32_t sample(const float* logits, int64_t vocab, int64_t position);

 private:
  SamplingOptions options_;
  struct Candidate {
    float logit;
    int32_t id;
  };
  std::vector<Candidate> candidates_;  // reused
};

}  // namespace sluice::model
