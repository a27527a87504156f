// SPDX-License-Identifier: Apache-2.0
// A compiled pre-tokenizer pattern. Matching is bounded: no pattern and no text can hang the caller.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

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

  // All matches in `text` (valid UTF-8), left to right, not overlapping; empty ones too, but not right after
  // another match. Throws invalid_argument when the pattern backtracks beyond the bounds. Any number of threads.
  std::vector<Match> find_all(std::string_view text) const;

 private:
  struct Code;
  std::unique_ptr<Code> code_;
};

}  // namespace sluice::text
