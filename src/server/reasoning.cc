// SPDX-License-Identifier: Apache-2.0
#include "server/reasoning.h"

#include <algorithm>
#include <utility>

namespace sluice::server {

namespace {
constexpr std::string_view kOpen = "<think>", kClose = "</think>", kSpace = " \t\r\n";

// The longest end of `text` that `tag` begins with.
size_t overlap(std::string_view text, std::string_view tag) {
  for (size_t n = std::min(text.size(), tag.size() - 1); n > 0; --n)
    if (text.ends_with(tag.substr(0, n))) return n;
  return 0;
}
}  // namespace

ReasoningSplitter::Begin beginning_of_answer(std::string_view prompt) {
  const size_t last = prompt.find_last_not_of(kSpace);
  prompt = prompt.substr(0, last == prompt.npos ? 0 : last + 1);
  if (prompt.ends_with(kOpen)) return ReasoningSplitter::Begin::thinking;
  return prompt.ends_with(kClose) ? ReasoningSplitter::Begin::answering : ReasoningSplitter::Begin::unknown;
}

void ReasoningSplitter::drop_space() {
  if (!after_tag_) return;
  held_.erase(0, std::min(held_.find_first_not_of(kSpace), held_.size()));
  after_tag_ = held_.empty();
}

void ReasoningSplitter::decide(Pieces& out) {
  const size_t first = held_.find_first_not_of(kSpace);
  const std::string_view text = std::string_view(held_).substr(first == held_.npos ? held_.size() : first);
  if (text.starts_with(kOpen)) {
    held_ = std::string(text.substr(kOpen.size()));
    state_ = Begin::thinking;
    after_tag_ = true;
    think(out);
  } else if (!kOpen.starts_with(text)) {
    out.content = std::exchange(held_, {});
    state_ = Begin::answering;
  }
}

void ReasoningSplitter::think(Pieces& out) {
  drop_space();
  const size_t close = held_.find(kClose);
  const size_t sure = close != held_.npos ? close : held_.size() - overlap(held_, kClose);
  out.reasoning += held_.substr(0, sure);
  held_.erase(0, sure);
  if (close == held_.npos) return;
  held_.erase(0, kClose.size());
  state_ = Begin::answering;
  after_tag_ = true;
  drop_space();
  out.content += std::exchange(held_, {});
}

ReasoningSplitter::Pieces ReasoningSplitter::push(std::string_view text) {
  Pieces out;
  held_ += text;
  if (state_ == Begin::unknown) {
    decide(out);
  } else if (state_ == Begin::thinking) {
    think(out);
  } else {
    drop_space();
    out.content = std::exchange(held_, {});
  }
  return out;
}

ReasoningSplitter::Pieces ReasoningSplitter::finish() {
  Pieces out;
  (state_ == Begin::thinking ? out.reasoning : out.content) = std::exchange(held_, {});
  return out;
}

}  // namespace sluice::server
