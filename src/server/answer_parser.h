// SPDX-License-Identifier: Apache-2.0
// Splits an answer to a chat into what the model thought, what it said and which functions it calls: the same for
// every API.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "engine/request.h"
#include "server/answer_part.h"
#include "server/reasoning/reasoning_format.h"
#include "server/tool_calls/tool_call_parser.h"

namespace sluice::server {

// How the answers to one request are to be read.
struct AnswerReading {
  const ReasoningFormat* reasoning = nullptr;  // nullptr: there are no thoughts
  AnswerBegin begin;                           // of the request's prompt
  std::optional<int32_t> thought_end;          // the token that ends a thought, where there is one
  bool separate_reasoning = true;              // else thoughts are content
  const CallFormat* calls = nullptr;           // nullptr: there are no calls
  std::shared_ptr<const Tools> tools;          // with `calls`
  ToolCallParser::Options options;

  // How an answer begins.
  std::optional<ReasoningParser::State> thoughts() const {
    if (reasoning == nullptr) return std::nullopt;
    return reasoning->parser(begin)->state();
  }
};

// For one choice.
class AnswerParser {
 public:
  // What `reading.begin` views is needed here only.
  explicit AnswerParser(const AnswerReading& reading);

  // What is certain after some more text, in order; after the last event all of it.
  std::vector<AnswerPart> push(const engine::Event& event);

  // So far. Tags' own tokens count.
  int64_t thought_tokens() const { return thought_tokens_; }
  // Of calls that are complete.
  size_t calls() const { return calls_ ? calls_->calls() : 0; }

 private:
  void add(const std::vector<ReasoningPart>& parts, std::vector<AnswerPart>& out);
  void count_thought(const engine::Event& event, ReasoningParser::State before, bool thought);

  std::shared_ptr<const Tools> tools_;  // of calls_
  std::optional<int32_t> thought_end_;
  bool separate_reasoning_;
  std::unique_ptr<ReasoningParser> reasoning_;
  std::optional<ToolCallParser> calls_;
  int64_t thought_tokens_ = 0, undecided_tokens_ = 0;  // undecided: before it is known whether they are a thought
};

}  // namespace sluice::server
