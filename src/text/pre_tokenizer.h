// SPDX-License-Identifier: Apache-2.0
// Cuts text into the pieces that BPE never merges across.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "text/regex.h"
#include "text/tokenizer_data.h"

namespace sluice::text {

class PreTokenizer {
 public:
  // `source` names the file in sentences. The last step, and no other, must be byte_level. Throws bad_file.
  PreTokenizer(const std::vector<PreTokenizerStep>& steps, const std::string& source);

  // The text (valid UTF-8; possibly with spaces put in) and its pieces: [begin, end) in bytes, none empty.
  struct Pieces {
    std::string text;
    std::vector<Match> spans;
  };
  Pieces split(std::string text) const;

 private:
  struct Splitter {
    Regex regex;
    SplitBehavior behavior;
    bool invert;
  };
  std::vector<Splitter> before_prefix_;  // the file's own splits
  bool add_prefix_space_ = false;
  std::vector<Splitter> after_prefix_;  // GPT-2's pattern, when byte_level asks for it
};

}  // namespace sluice::text
