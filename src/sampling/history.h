// SPDX-License-Identifier: Apache-2.0
// The tokens that a sequence has seen, and the logit edits of the penalties for them.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "sampling/choose.h"

namespace sluice::sampling {

struct Penalties {
  double repetition = 1;               // 1: none
  double frequency = 0, presence = 0;  // 0: none
};

class History {
 public:
  void add_prompt(int32_t token) { seen_.try_emplace(token, 0); }
  void add(int32_t token) { ++seen_[token]; }

  // Appends the edits that the penalties ask for. repetition: of tokens of prompt and answer; frequency times count,
  // and presence: of tokens of the answer. `drafts` count as tokens of the answer after those that were added.
  void penalize(const Penalties& penalties, std::span<const int32_t> drafts, std::vector<LogitEdit>& edits) const;

 private:
  std::unordered_map<int32_t, int32_t> seen_;  // token -> times in the answer
};

}  // namespace sluice::sampling
