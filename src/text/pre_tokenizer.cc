// SPDX-License-Identifier: Apache-2.0
#include "text/pre_tokenizer.h"

#include <algorithm>

#include "base/error.h"

namespace sluice::text {
namespace {

constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

struct Part {
  Match span;
  bool matched;
};

// Joins a matched part with its neighbours. The rules, and that "next" reads from the right, are those of Hugging
// Face's NormalizedString::split.
std::vector<Part> merge(std::vector<Part> parts, SplitBehavior behavior) {
  if (behavior == SplitBehavior::isolated || behavior == SplitBehavior::removed) return parts;
  const bool from_right = behavior == SplitBehavior::merged_with_next;
  if (from_right) std::reverse(parts.begin(), parts.end());
  std::vector<Part> out;
  bool previous_matched = false;
  for (const Part& p : parts) {
    const bool join =
        behavior == SplitBehavior::contiguous ? p.matched == previous_matched : p.matched && !previous_matched;
    previous_matched = p.matched;
    if (!join || out.empty()) {
      out.push_back(p);
    } else if (from_right) {
      out.back().span.begin = p.span.begin;
    } else {
      out.back().span.end = p.span.end;
    }
  }
  if (from_right) std::reverse(out.begin(), out.end());
  return out;
}

// The parts of [within.begin, within.end): matches and what lies between them.
std::vector<Part> parts_of(const Regex& regex, std::string_view text, Match within, bool invert) {
  std::vector<Part> out;
  size_t previous = within.begin;
  for (const Match& m : regex.find_all(text.substr(within.begin, within.end - within.begin))) {
    const Match at{within.begin + m.begin, within.begin + m.end};
    if (previous != at.begin) out.push_back({{previous, at.begin}, invert});
    out.push_back({at, !invert});
    previous = at.end;
  }
  if (previous != within.end) out.push_back({{previous, within.end}, invert});
  return out;
}

}  // namespace

PreTokenizer::PreTokenizer(const std::vector<PreTokenizerStep>& steps, const std::string& source) {
  using Kind = PreTokenizerStep::Kind;
  check_file(!steps.empty() && steps.back().kind == Kind::byte_level,
             "{}: the last pre-tokenizer is not ByteLevel; byte-level BPE is the only model that is accepted", source);
  for (size_t i = 0; i < steps.size(); ++i) {
    const PreTokenizerStep& s = steps[i];
    const std::string what = fmt::format("{}: pre-tokenizer {}: the pattern", source, i);
    switch (s.kind) {
      case Kind::split:
        before_prefix_.push_back({Regex(s.pattern, !s.is_regex, what), s.behavior, s.invert});
        break;
      case Kind::digits:
        before_prefix_.push_back({Regex("\\p{N}", false, what),
                                  s.individual_digits ? SplitBehavior::isolated : SplitBehavior::contiguous, false});
        break;
      case Kind::byte_level:
        check_file(i + 1 == steps.size(), "{}: pre-tokenizer {} of {} is ByteLevel; it must be the last", source, i,
                   steps.size());
        add_prefix_space_ = s.add_prefix_space;
        if (s.use_regex) after_prefix_.push_back({Regex(kGpt2Pattern, false, what), SplitBehavior::isolated, false});
        break;
    }
  }
}

PreTokenizer::Pieces PreTokenizer::split(std::string text) const {
  std::vector<Match> spans;
  if (!text.empty()) spans.push_back({0, text.size()});

  const auto apply = [&](const std::vector<Step>& steps) {
    for (const Step& step : steps) {
      std::vector<Match> next;
      for (const Match& span : spans)
        for (const Part& p : merge(parts_of(step.regex, text, span, step.invert), step.behavior)) {
          const bool removed = p.matched && step.behavior == SplitBehavior::removed;
          if (!removed && p.span.begin != p.span.end) next.push_back(p.span);
        }
      spans = std::move(next);
    }
  };

  apply(before_prefix_);
  if (add_prefix_space_) {
    std::string spaced;
    for (Match& span : spans) {
      const size_t begin = spaced.size();
      if (text[span.begin] != ' ') spaced += ' ';
      spaced.append(text, span.begin, span.end - span.begin);
      span = {begin, spaced.size()};
    }
    text = std::move(spaced);
  }
  apply(after_prefix_);
  return {std::move(text), std::move(spans)};
}

}  // namespace sluice::text
