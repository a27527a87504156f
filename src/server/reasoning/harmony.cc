// SPDX-License-Identifier: Apache-2.0
// gpt-oss' messages: <|channel|>analysis<|message|>a thought<|end|><|start|>assistant<|channel|>final<|message|>text
// Messages to functions stay as they are: tool_calls/gpt_oss.cc reads them.
#include <algorithm>
#include <utility>

#include "server/reasoning/reasoning_format.h"

namespace sluice::server {

namespace {
constexpr std::string_view kStart = "<|start|>", kChannel = "<|channel|>", kMessage = "<|message|>", kTo = " to=";
constexpr size_t kLongestHeader = 512;

class HarmonyParser final : public ReasoningParser {
 public:
  // continues: the answer goes on within a message of the channel "final".
  HarmonyParser(bool continues, bool tags_stay)
      : place_(continues ? Place::body : Place::header), seen_(continues), tags_stay_(tags_stay) {}

  std::vector<ReasoningPart> push(std::string_view text) override {
    std::vector<ReasoningPart> out;
    held_ += text;
    while (place_ == Place::header ? header(out) : body(out)) {
    }
    return out;
  }
  std::vector<ReasoningPart> finish() override {
    std::vector<ReasoningPart> out;
    add_part(out, std::exchange(held_, {}), place_ == Place::body && kind_ == Kind::thought);
    return out;
  }
  State state() const override {
    if (place_ == Place::body && kind_ == Kind::thought) return State::thinking;
    return seen_ ? State::answering : State::unknown;
  }

 private:
  enum class Place : uint8_t { header, body };
  enum class Kind : uint8_t { thought, answer, call };

  void give(size_t bytes, bool thought, std::vector<ReasoningPart>& out) {
    add_part(out, std::string_view(held_).substr(0, bytes), thought);
    held_.erase(0, bytes);
  }
  void drop(size_t bytes, std::vector<ReasoningPart>& out) {
    if (kind_ == Kind::call || tags_stay_)
      give(bytes, kind_ != Kind::call, out);
    else
      held_.erase(0, bytes);
  }

  // True: the body is next. Text that is no header is an answer without one.
  bool header(std::vector<ReasoningPart>& out) {
    if (held_.empty()) return false;
    const std::string_view text = held_;
    const size_t end = text.find(kMessage);
    bool possible = false;
    for (const std::string_view begin : {kStart, kChannel, kTo})
      possible = possible || text.starts_with(begin) || begin.starts_with(text);
    if (possible && end == text.npos && text.size() <= kLongestHeader) return false;
    seen_ = true;
    place_ = Place::body;
    kind_ = Kind::answer;
    if (!possible || end == text.npos || end > kLongestHeader) return true;
    const std::string_view head = text.substr(0, end);
    const size_t channel = head.find(kChannel);
    const std::string_view name = channel == head.npos ? "" : head.substr(channel + kChannel.size());
    if (head.find(kTo) != head.npos)
      kind_ = Kind::call;
    else if (name == "analysis")
      kind_ = Kind::thought;
    drop(end + kMessage.size(), out);
    return true;
  }

  // True: the header of another message is next.
  bool body(std::vector<ReasoningPart>& out) {
    static constexpr std::string_view kEnds[]{"<|end|>", "<|return|>", "<|call|>", kStart};
    const std::string_view text = held_;
    size_t end = text.npos, begun = 0;
    std::string_view tag;
    for (const std::string_view t : kEnds) {
      if (const size_t at = text.find(t); at < end) end = at, tag = t;
      for (size_t n = std::min(text.size(), t.size() - 1); n > begun; --n)
        if (text.ends_with(t.substr(0, n))) begun = n;
    }
    give(end != text.npos ? end : text.size() - begun, kind_ == Kind::thought, out);
    if (end == std::string::npos) return false;
    if (tag != kStart) drop(tag.size(), out);
    place_ = Place::header;
    return !held_.empty();
  }

  Place place_;
  Kind kind_ = Kind::answer;
  bool seen_, tags_stay_;
  std::string held_;
};
}  // namespace

ReasoningFormat harmony_format() {
  ReasoningFormat f;
  f.names = {"gpt-oss", "openai_gptoss"};
  f.markers = {kChannel, kMessage};
  f.tags = {kStart, kChannel, kMessage, "<|end|>", "<|return|>", "<|call|>", "<|constrain|>"};
  f.close = "<|end|>";
  f.parser = [](const AnswerBegin& begin) -> std::unique_ptr<ReasoningParser> {
    return std::make_unique<HarmonyParser>(!begin.continued.empty(), begin.tags_stay);
  };
  return f;
}

}  // namespace sluice::server
