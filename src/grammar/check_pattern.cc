// SPDX-License-Identifier: Apache-2.0
// Bounds of regular expressions and grammars, before the library sees them: how deep their groups nest, and how large
// they are with all repetitions written out. Not a parser: the library reports all other errors.
#include <algorithm>
#include <cctype>
#include <vector>

#include "base/error.h"
#include "grammar/source.h"

namespace sluice::grammar {

namespace {
class Scanner {
 public:
  Scanner(std::string_view text, std::string_view what, bool ebnf, int64_t most_size, int64_t most_count)
      : text_(text), what_(what), ebnf_(ebnf), most_size_(most_size), most_count_(most_count) {}

  void run() {
    groups_.emplace_back();
    while (at_ < text_.size()) step();
    check(groups_.size() == 1, "the {} has {} groups that are not closed", what_, groups_.size() - 1);
    bound(groups_.back().size);
  }

 private:
  struct Group {
    int64_t size = 0, last = 0;  // atoms, and those of the last element
  };

  void step() {
    const char c = text_[at_++];
    if (c == '\\') {
      if (at_ < text_.size()) ++at_;
      atom(1);
    } else if (c == '[') {
      skip_to(']');
      atom(1);
    } else if (ebnf_ && c == '"') {
      const size_t begin = at_;
      skip_to('"');
      atom(static_cast<int64_t>(at_ - begin));
    } else if (ebnf_ && c == '#') {
      at_ = std::min(text_.find('\n', at_), text_.size());
    } else if (c == '(') {
      groups_.emplace_back();
      check(groups_.size() <= kMaxNesting + 1, "the {} has groups nested more than {} deep", what_, kMaxNesting);
    } else if (c == ')') {
      check(groups_.size() > 1, "the {} closes a group at byte {} that was not opened", what_, at_ - 1);
      const int64_t size = groups_.back().size;
      groups_.pop_back();
      atom(std::max<int64_t>(size, 1));
    } else if (c == '{') {
      repeat();
    } else if (ebnf_ && std::isspace(static_cast<unsigned char>(c)) != 0) {
      // White space may separate an element from its repetition.
    } else if (c != '*' && c != '+' && c != '?' && c != '|') {
      atom(1);
    }
  }

  void skip_to(char end) {
    for (; at_ < text_.size(); ++at_) {
      if (text_[at_] == '\\') {
        ++at_;
      } else if (text_[at_] == end) {
        ++at_;
        return;
      }
    }
    at_ = text_.size();
  }

  // {m}, {m,} and {m,n}; anything else in braces is text.
  void repeat() {
    const size_t end = text_.find('}', at_);
    const std::string_view inside = text_.substr(at_, end == text_.npos ? 0 : end - at_);
    int64_t count = 1, number = 0;
    bool digits = false;
    for (const char c : inside) {
      if (std::isdigit(static_cast<unsigned char>(c)) != 0) {
        number = std::min<int64_t>(number * 10 + (c - '0'), kHuge);
        count = std::max(count, number);
        digits = true;
      } else if (c == ',') {
        number = 0;
      } else if (c != ' ') {
        return atom(1);
      }
    }
    if (!digits) return atom(1);
    check(count <= most_count_, "the {} repeats a part {}{} times; accepted: at most {}", what_,
          count >= kHuge ? "more than " : "", count, most_count_);
    at_ = end + 1;
    Group& group = groups_.back();
    const int64_t larger = std::min(group.last * count, kHuge);
    group.size = std::min(group.size + larger - group.last, kHuge);
    group.last = larger;
    bound(group.size);
  }

  void atom(int64_t size) {
    Group& group = groups_.back();
    group.size = std::min(group.size + size, kHuge);
    group.last = size;
  }

  void bound(int64_t size) const {
    // A grammar without repetitions is as large as its text, which has a bound of its own.
    const int64_t most = std::max(most_size_, static_cast<int64_t>(text_.size()));
    check(size <= most, "the {} stands for {}{} characters and classes with its repetitions written out; accepted: {}",
          what_, size >= kHuge ? "more than " : "", size, most);
  }

  static constexpr int64_t kHuge = int64_t{1} << 30;
  std::string_view text_, what_;
  bool ebnf_;
  int64_t most_size_, most_count_;
  size_t at_ = 0;
  std::vector<Group> groups_;
};
}  // namespace

void check_pattern(std::string_view pattern, std::string_view what) {
  Scanner(pattern, what, false, kMaxExpandedSize, kMaxExpandedSize).run();
}

void check_string_pattern(std::string_view pattern, std::string_view what) {
  Scanner(pattern, what, false, kMaxStringPatternSize, kMaxStringPatternCount).run();
}

void check_ebnf(std::string_view text) { Scanner(text, "grammar", true, kMaxExpandedSize, kMaxExpandedSize).run(); }

}  // namespace sluice::grammar
