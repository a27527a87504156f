// SPDX-License-Identifier: Apache-2.0
// The sampling state of one sequence: its options and the tokens that it has seen.
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
  double top_p = 1;        // keeps the smallest set of the most likely tokens whose probabilities reach it
  uint64_t seed = 0;
  double min_p = 0;                                    // keeps tokens with at least min_p times the highest probability
  double repetition_penalty = 1;                       // divides positive and multiplies negative logits of seen tokens
  double frequency_penalty = 0, presence_penalty = 0;  // subtracted per occurrence, and once, for tokens of the answer
  std::vector<std::pair<int32_t, float>> logit_bias = {};  // token, added to its logit
  std::vector<int32_t> allowed_tokens = {};                // only these can be chosen; empty: all
};
// A smaller repetition_penalty would make infinities of logits that are thousands of times smaller than the largest
// float: a request's number must not look like broken weights.
inline constexpr double kLeastRepetitionPenalty = 1e-3;
// Throws invalid_argument with one sentence that begins with the option's name. `vocab` bounds logit_bias's tokens; 0:
// not known yet.
void validate(const SamplingOptions& options, int64_t vocab = 0);

class Sampler {
 public:
  // Throws as validate(), and invalid_argument for allowed_tokens without the vocabulary's size.
  explicit Sampler(SamplingOptions options, int64_t vocab = 0);

  const SamplingOptions& options() const { return options_; }
  // allowed_tokens as a mask (choose.h) for the rows that row() makes; empty when there are none.
  std::span<const uint32_t> allowed_mask() const { return allowed_mask_; }
  // True when the choice depends on earlier tokens: see() must then be called for each of them.
  bool needs_history() const;
  void see_prompt(std::span<const int32_t> tokens);
  void see(int32_t token);

  // The sampling parameters of the token at `position`; `logits`: its row of the step's logits. `banned`: tokens that
  // must not be chosen. `drafts`: guesses between the last token seen and this one, which count as seen. Edits are
  // appended; the mask is the caller's.
  SampleRow row(int32_t logits, int64_t position, std::span<const int32_t> banned, std::span<const int32_t> drafts,
                std::vector<LogitEdit>& edits) const;

 private:
  SamplingOptions options_;
  std::vector<uint32_t> allowed_mask_;
  History history_;
};

}  // namespace sluice::sampling
