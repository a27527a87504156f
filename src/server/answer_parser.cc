// SPDX-License-Identifier: Apache-2.0
#include "server/answer_parser.h"

#include <algorithm>
#include <utility>

namespace sluice::server {

namespace {
using Kind = AnswerPart::Kind;

// Contents become one part, as do thoughts, where they meet.
void add_text(Kind kind, std::string_view text, std::vector<AnswerPart>& out) {
  if (text.empty()) return;
  if (out.empty() || out.back().kind != kind) out.push_back({kind, "", {}});
  out.back().text += text;
}

void add_parts(std::vector<AnswerPart> more, std::vector<AnswerPart>& out) {
  for (AnswerPart& part : more) {
    if (part.kind == Kind::content)
      add_text(Kind::content, part.text, out);
    else
      out.push_back(std::move(part));
  }
}
}  // namespace

AnswerParser::AnswerParser(const AnswerReading& reading)
    : tools_(reading.tools), thought_end_(reading.thought_end), separate_reasoning_(reading.separate_reasoning) {
  if (reading.reasoning != nullptr) reasoning_ = reading.reasoning->parser(reading.begin);
  if (reading.calls != nullptr) calls_.emplace(*reading.calls, *tools_, reading.options);
}

void AnswerParser::add(const std::vector<ReasoningPart>& parts, std::vector<AnswerPart>& out) {
  for (const ReasoningPart& part : parts) {
    if (part.thought && separate_reasoning_)
      add_text(Kind::thought, part.text, out);
    else if (!part.thought && calls_)
      add_parts(calls_->push(part.text), out);
    else
      add_text(Kind::content, part.text, out);
  }
}

std::vector<AnswerPart> AnswerParser::push(const engine::Event& event) {
  std::vector<AnswerPart> out;
  const bool last = event.reason != engine::FinishReason::none;
  if (reasoning_) {
    const auto before = reasoning_->state();
    const std::vector<ReasoningPart> parts = reasoning_->push(event.text);
    add(parts, out);
    if (separate_reasoning_)
      count_thought(event, before, std::any_of(parts.begin(), parts.end(), [](auto& p) { return p.thought; }));
    if (last) add(reasoning_->finish(), out);
  } else {
    add({{event.text, false}}, out);
  }
  if (last && calls_) add_parts(calls_->finish(), out);
  return out;
}

// Of the tokens that came with the closing tag, those up to it count.
void AnswerParser::count_thought(const engine::Event& event, ReasoningParser::State before, bool thought) {
  using State = ReasoningParser::State;
  const State after = reasoning_->state();
  if (before == State::answering && after == State::answering) return;
  const auto count = static_cast<int64_t>(event.tokens.size());
  if (after == State::unknown) {
    undecided_tokens_ += count;
    return;
  }
  const int64_t known = std::exchange(undecided_tokens_, 0);
  int64_t now = count;
  if (after == State::answering) {
    if (before == State::unknown && !thought) return;
    const auto end =
        thought_end_ ? std::find(event.tokens.begin(), event.tokens.end(), *thought_end_) : event.tokens.end();
    if (end != event.tokens.end()) now = end - event.tokens.begin() + 1;
  }
  thought_tokens_ += known + now;
}

}  // namespace sluice::server
