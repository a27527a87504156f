// SPDX-License-Identifier: Apache-2.0
// Which tokens a sequence has seen, and what the penalties do about them.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>

namespace sluice::sampling {

struct Penalties {
  double repetition = 1;               // 1: none
  double frequency = 0, presence = 0;  // 0: none
};

class History {
 public:
  void add_prompt(int32_t token) { seen_.try_emplace(token, 0); }
  void add(int32_t token) { ++seen_[token]; }

  // repetition: of tokens of prompt and answer; frequency times count, and presence: of tokens of the answer.
  // Tokens outside the logits are skipped.
  void apply(const Penalties& penalties, std::span<float> logits) const;

 private:
  std::unordered_map<int32_t, int32_t> seen_;  // token -> times in the answer
};

}  // namespace sluice::sampling
