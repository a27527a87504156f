// SPDX-License-Identifier: Apache-2.0
// Template text to tokens, with Jinja's white space rules as transformers sets them: trim_blocks, lstrip_blocks, no
// trailing newline, "-" and "+" beside a tag.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace sluice::text::jinja {

struct Token {
  enum class Kind { data, variable_begin, variable_end, block_begin, block_end, name, string, integer, real, op, end };
  Kind kind = Kind::end;
  std::string text;  // of strings: without quotes, escapes resolved
  int line = 0;
  bool is_op(std::string_view t) const { return kind == Kind::op && text == t; }
  bool is_name(std::string_view t) const { return kind == Kind::name && text == t; }
};

// The last token is `end`. Throws bad_file for what is not a template ("chat template line 3: ...").
std::vector<Token> tokenize(std::string_view source);

}  // namespace sluice::text::jinja
