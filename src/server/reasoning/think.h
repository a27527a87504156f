// SPDX-License-Identifier: Apache-2.0
// <think> and </think>, of Qwen3, DeepSeek, Nemotron, GLM-4.5, Kimi-K2 and others.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "server/reasoning/reasoning_format.h"

namespace sluice::server {

class ThinkParser final : public ReasoningParser {
 public:
  // unknown: a <think> at the text's beginning decides.
  explicit ThinkParser(State begin, bool tags_stay = false) : state_(begin), tags_stay_(tags_stay) {}

  std::vector<ReasoningPart> push(std::string_view text) override;
  std::vector<ReasoningPart> finish() override;
  State state() const override { return state_; }

 private:
  void decide(std::vector<ReasoningPart>& out);
  void think(std::vector<ReasoningPart>& out);
  void answer(std::vector<ReasoningPart>& out);
  void drop(size_t bytes, std::vector<ReasoningPart>& out);
  void drop_space(std::vector<ReasoningPart>& out);

  State state_;
  bool tags_stay_;
  bool after_tag_ = false;  // white space is dropped
  std::string held_;
};

// How an answer to this prompt begins: templates may open the thought, or close it at once.
ReasoningParser::State beginning_of_answer(std::string_view prompt);
// How an answer goes on that begins with `text`, which is not empty.
ReasoningParser::State beginning_of_rest(std::string_view text);

}  // namespace sluice::server
