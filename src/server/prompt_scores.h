// SPDX-License-Identifier: Apache-2.0
// The log probabilities of a prompt for each of its choices.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "engine/request.h"

namespace sluice::server {

// The engine scores a prompt once, with its first choice. So the other choices' events wait for the last of these log
// probabilities: each answer has them all from its beginning.
class PromptScores {
 public:
  // wanted: the prompt is scored, and its answers show it.
  explicit PromptScores(bool wanted) : complete_(!wanted) {}

  // Calls use(event, weight_version) for this event and for those that waited for it, or for none. weight_version: of
  // the weights that the engine ran when it made the event.
  template <class F>
  void in_order(const engine::Event& event, const std::string& weight_version, const F& use) {
    if (complete_) return use(event, weight_version);
    if (event.choice != 0) return held_.push_back({event, weight_version});
    tokens_.insert(tokens_.end(), event.prompt_logprobs.begin(), event.prompt_logprobs.end());
    complete_ = !event.tokens.empty() || event.reason != engine::FinishReason::none;
    if (!complete_) return;
    use(event, weight_version);
    for (const Held& held : std::exchange(held_, {})) use(held.event, held.weight_version);
  }

  const std::vector<sampling::TokenLogprob>& tokens() const { return tokens_; }

 private:
  struct Held {
    engine::Event event;
    std::string weight_version;
  };

  bool complete_;
  std::vector<sampling::TokenLogprob> tokens_;
  std::vector<Held> held_;
};

}  // namespace sluice::server
