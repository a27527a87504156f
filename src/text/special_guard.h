// SPDX-License-Identifier: Apache-2.0
// Keeps users' words from being special tokens: in a rendered chat the template's special tokens are tokens, those that
// a message spells out are plain text, so that nobody's words can end their turn and begin the system's.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace sluice::text {

class SpecialGuard {
 public:
  explicit SpecialGuard(const Tokenizer& tokenizer);

  // A message's text, with a mark inside each special token that it spells out.
  std::string guard(std::string_view text) const;
  // The ids of a rendered chat whose messages went through guard(). Stops after more than `enough` ids.
  std::vector<int32_t> encode(const Tokenizer& tokenizer, std::string_view rendered, size_t enough = SIZE_MAX) const;
  static size_t bytes_without_guards(std::string_view rendered);
  // Whether `text` is the text of a special token.
  bool is_special(std::string_view text) const;

 private:
  std::vector<std::string> special_texts_;
};

}  // namespace sluice::text
