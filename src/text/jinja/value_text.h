// SPDX-License-Identifier: Apache-2.0
// Values as text: str(), repr() and json.dumps() of Python, to the byte.
#pragma once

#include <string>

#include "text/jinja/value.h"

namespace sluice::text::jinja {

// str(value); "" for undefined.
std::string to_text(const Value& value);
std::string to_repr(const Value& value);

struct JsonStyle {
  bool ensure_ascii = false;  // transformers' default, not Python's
  int64_t indent = -1;        // negative: on one line
  bool sort_keys = false;
  std::string item_separator = ", ", key_separator = ": ";
};
// Throws invalid_argument for what JSON has no form for (undefined, functions).
std::string to_json(const Value& value, const JsonStyle& style = {});

}  // namespace sluice::text::jinja
