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
  AnswerBegin begin;                           // how the request's prompt lets an answer begin
  std::optional<int32_t> thought_end;          // the token that ends a thought, where there is one
  bool separate_reasoning = true;              // else thoughts are content
  const CallFormat* calls = nullptr;           // nullptr: there are no calls
  std::shared_ptr<const Tools> tools;          // with `calls`
  ToolCallParser::Options options;

  // Whether an answer begins inside of a thought; nothing: it cannot have thoughts.
  std::optional<ReasoningParser::State> thoughts() const {
    if (reasoning == nullptr) return std::nullopt;
    return reasoning->parser(begin)->state();
  }
};

// Reads the text of one choice, event by event.
class AnswerParser {
 public:
  // The strings that `reading.begin` refers to must live until the constructor returns.
  explicit AnswerParser(const AnswerReading& reading);

  // The parts that are certain after the event's text, in order. The last event makes all of the text certain.
  std::vector<AnswerPart> push(const engine::Event& event);

  // Tokens of thoughts so far, those of the tags included.
  int64_t thought_tokens() const { return thought_tokens_; }
  // How many calls are complete.
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
