// SPDX-License-Identifier: Apache-2.0
#include "server/reasoning/think.h"

#include <algorithm>
#include <utility>

namespace sluice::server {

using State = ReasoningParser::State;

namespace {
constexpr std::string_view kOpen = "<think>", kClose = "</think>", kSpace = " \t\r\n";

// The longest end of `text` that `tag` begins with.
size_t overlap(std::string_view text, std::string_view tag) {
  for (size_t n = std::min(text.size(), tag.size() - 1); n > 0; --n)
    if (text.ends_with(tag.substr(0, n))) return n;
  return 0;
}

State beginning(const AnswerBegin& begin) {
  return begin.continued.empty() ? beginning_of_answer(begin.prompt) : beginning_of_rest(begin.continued);
}
}  // namespace

State beginning_of_answer(std::string_view prompt) {
  const size_t last = prompt.find_last_not_of(kSpace);
  prompt = prompt.substr(0, last == prompt.npos ? 0 : last + 1);
  if (prompt.ends_with(kOpen)) return State::thinking;
  return prompt.ends_with(kClose) ? State::answering : State::unknown;
}

State beginning_of_rest(std::string_view text) {
  const size_t open = text.rfind(kOpen), close = text.rfind(kClose);
  const bool thinking = open != text.npos && (close == text.npos || close < open);
  return thinking ? State::thinking : State::answering;
}

void ThinkParser::drop(size_t bytes, std::vector<ReasoningPart>& out) {
  if (tags_stay_) add_part(out, std::string_view(held_).substr(0, bytes), true);
  held_.erase(0, bytes);
}

void ThinkParser::drop_space(std::vector<ReasoningPart>& out) {
  if (!after_tag_) return;
  drop(std::min(held_.find_first_not_of(kSpace), held_.size()), out);
  after_tag_ = held_.empty();
}

void ThinkParser::decide(std::vector<ReasoningPart>& out) {
  const size_t first = std::min(held_.find_first_not_of(kSpace), held_.size());
  const std::string_view text = std::string_view(held_).substr(first);
  if (text.starts_with(kOpen)) {
    drop(first + kOpen.size(), out);
    state_ = State::thinking;
    after_tag_ = true;
    think(out);
  } else if (!kOpen.starts_with(text)) {
    state_ = State::answering;
    answer(out);
  }
}

void ThinkParser::think(std::vector<ReasoningPart>& out) {
  drop_space(out);
  const size_t close = held_.find(kClose);
  const size_t sure = close != held_.npos ? close : held_.size() - overlap(held_, kClose);
  add_part(out, std::string_view(held_).substr(0, sure), true);
  held_.erase(0, sure);
  if (close == held_.npos) return;
  drop(kClose.size(), out);
  state_ = State::answering;
  after_tag_ = true;
  answer(out);
}

void ThinkParser::answer(std::vector<ReasoningPart>& out) {
  drop_space(out);
  add_part(out, std::exchange(held_, {}), false);
}

std::vector<ReasoningPart> ThinkParser::push(std::string_view text) {
  std::vector<ReasoningPart> out;
  held_ += text;
  if (state_ == State::unknown)
    decide(out);
  else if (state_ == State::thinking)
    think(out);
  else
    answer(out);
  return out;
}

std::vector<ReasoningPart> ThinkParser::finish() {
  std::vector<ReasoningPart> out;
  add_part(out, std::exchange(held_, {}), state_ == State::thinking);
  return out;
}

ReasoningFormat think_format() {
  ReasoningFormat f;
  f.names = {"qwen3", "deepseek-v3", "deepseek_v3", "glm45", "kimi_k2", "nano_v3", "nemotron_v3"};
  f.markers = {kClose};
  f.tags = {kOpen, kClose};
  f.close = kClose;
  f.parser = [](const AnswerBegin& begin) -> std::unique_ptr<ReasoningParser> {
    return std::make_unique<ThinkParser>(beginning(begin), begin.tags_stay);
  };
  return f;
}

ReasoningFormat deepseek_r1_format() {
  ReasoningFormat f = think_format();
  f.names = {"deepseek-r1", "deepseek_r1", "qwen3-thinking"};
  f.parser = [](const AnswerBegin& begin) -> std::unique_ptr<ReasoningParser> {
    const State state = beginning(begin);
    return std::make_unique<ThinkParser>(state == State::unknown ? State::thinking : state, begin.tags_stay);
  };
  return f;
}

}  // namespace sluice::server
