// SPDX-License-Identifier: Apache-2.0
#include "server/tool_calls/close_json.h"

namespace sluice::server {

std::string closed_json(std::string_view begun) {
  std::string open;  // the brackets to come, the outermost first
  std::string out;
  const auto keep = [&](size_t end) { out.assign(begun.substr(0, end)).append(open.rbegin(), open.rend()); };
  bool in_string = false, is_value = false;  // is_value: of the next string, or of this one
  for (size_t i = 0; i < begun.size(); ++i) {
    const char c = begun[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c != '"') continue;
      in_string = false;
      if (is_value) keep(i + 1);
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      open += c == '{' ? '}' : ']';
      is_value = c == '[';
      keep(i + 1);
    } else if (c == '}' || c == ']') {
      if (!open.empty()) open.pop_back();
      keep(i + 1);
    } else if (c == ',') {
      keep(i);
      is_value = open.ends_with(']');
    } else if (c == ':') {
      is_value = true;
    }
  }
  return out.empty() ? "{}" : out;
}

}  // namespace sluice::server
