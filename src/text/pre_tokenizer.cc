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
void merge(std::vector<Part>& parts, SplitBehavior behavior) {
  if (behavior == SplitBehavior::isolated || behavior == SplitBehavior::removed) return;
  const bool from_right = behavior == SplitBehavior::merged_with_next;
  if (from_right) std::reverse(parts.begin(), parts.end());
  size_t kept = 0;
  bool previous_matched = false;
  for (const Part p : parts) {
    const bool join =
        behavior == SplitBehavior::contiguous ? p.matched == previous_matched : p.matched && !previous_matched;
    previous_matched = p.matched;
    if (!join || kept == 0) {
      parts[kept++] = p;
    } else if (from_right) {
      parts[kept - 1].span.begin = p.span.begin;
    } else {
      parts[kept - 1].span.end = p.span.end;
    }
  }
  parts.resize(kept);
  if (from_right) std::reverse(parts.begin(), parts.end());
}

// The parts of [within.begin, within.end): matches and what lies between them, none empty unless matched.
void find_parts(RegexSearch& search, std::string_view text, Match within, bool invert, std::vector<Part>& out) {
  out.clear();
  size_t previous = within.begin;
  search.find_all(text.substr(within.begin, within.end - within.begin), [&](Match m) {
    const Match at{within.begin + m.begin, within.begin + m.end};
    if (previous != at.begin) out.push_back({{previous, at.begin}, invert});
    out.push_back({at, !invert});
    previous = at.end;
  });
  if (previous != within.end) out.push_back({{previous, within.end}, invert});
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

  const auto apply = [&](const std::vector<Splitter>& splitters) {
    for (const Splitter& splitter : splitters) {
      RegexSearch search(splitter.regex, text.size());
      std::vector<Match> next;
      next.reserve(spans.size());
      std::vector<Part> parts;
      for (const Match& span : spans) {
        find_parts(search, text, span, splitter.invert, parts);
        merge(parts, splitter.behavior);
        for (const Part& p : parts) {
          const bool removed = p.matched && splitter.behavior == SplitBehavior::removed;
          if (!removed && p.span.begin != p.span.end) next.push_back(p.span);
        }
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
