// SPDX-License-Identifier: Apache-2.0
// A compiled pre-tokenizer pattern. Matching is bounded: no pattern and no text can hang the caller.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace sluice::text {

struct Match {
  size_t begin = 0, end = 0;  // bytes
};

class Regex {
 public:
  // `pattern` is Oniguruma's (see oniguruma.h) or, with `literal`, text to be found as it is. `what` names it in
  // sentences ("tokenizer.json: pre-tokenizer 0: pattern"). Throws bad_file when it does not compile.
  Regex(std::string_view pattern, bool literal, std::string what);
  ~Regex();
  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;

 private:
  struct Code;
  std::unique_ptr<Code> code_;
  friend class RegexSearch;
};

// The buffers and the time budget of searching one text; `regex` must live longer. For one thread; make as many as
// are needed for one Regex.
class RegexSearch {
 public:
  // text_bytes: of all texts that will be searched together; the time allowed grows with it.
  RegexSearch(const Regex& regex, size_t text_bytes);
  ~RegexSearch();

  // Calls found(Match) for all matches in `text` (valid UTF-8), left to right, not overlapping; empty ones too, but
  // not right after another match. Throws invalid_argument when the pattern backtracks beyond the bounds.
  template <class Found>
  void find_all(std::string_view text, Found&& found) {
    Match m;
    size_t pos = 0, previous_end = std::string_view::npos;
    while (next(text, pos, m)) {
      const bool empty = m.begin == m.end;
      if (!empty || previous_end != m.begin) found(m);
      previous_end = pos = m.end;
      if (empty && !step(text, pos)) break;
    }
  }

 private:
  bool next(std::string_view text, size_t pos, Match& match);
  static bool step(std::string_view text, size_t& pos);  // over one character; false at the end
  [[noreturn]] void refuse_slow(size_t at, size_t text_bytes) const;

  struct Scratch;
  std::unique_ptr<Scratch> scratch_;
};

}  // namespace sluice::text
