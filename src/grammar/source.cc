// SPDX-License-Identifier: Apache-2.0
#include "grammar/source.h"

#include "base/error.h"

namespace sluice::grammar {

const char* to_string(Kind kind) {
  switch (kind) {
    case Kind::json_schema:
      return "JSON schema";
    case Kind::regex:
      return "regular expression";
    case Kind::ebnf:
      return "grammar";
    case Kind::structural_tag:
      return "structural tag";
  }
  return "";
}

Source one_of(std::span<const std::string> choices) {
  std::string text = "root ::= ";
  for (const std::string& choice : choices) {
    if (&choice != choices.data()) text += " | ";
    text += '"';
    for (const char c : choice) {
      if (c == '"' || c == '\\') {
        text.append({'\\', c});
      } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
        text += fmt::format("\\u{:04x}", static_cast<int>(c));  // after \x the library takes any number of digits
      } else {
        text += c;
      }
    }
    text += '"';
  }
  return {Kind::ebnf, text + "\n"};
}

Prepared prepare(const Source& source) {
  const size_t most = source.kind == Kind::regex  ? kMaxRegexBytes
                      : source.kind == Kind::ebnf ? kMaxEbnfBytes
                                                  : kMaxSchemaBytes;
  check(source.text.size() <= most, "the {} has {} bytes; accepted: at most {}", to_string(source.kind),
        source.text.size(), most);
  switch (source.kind) {
    case Kind::json_schema:
      return prepare_schema(source.text, source.closed);
    case Kind::structural_tag: {
      Prepared out = prepare_structural_tag(source.text);
      out.tags.insert(out.tags.end(), source.tags.begin(), source.tags.end());
      return out;
    }
    case Kind::regex:
      check_pattern(source.text, to_string(source.kind));
      return {adapted_pattern(source.text, to_string(source.kind)), {}, false};
    case Kind::ebnf:
      check_ebnf(source.text);
      break;
  }
  return {source.text, {}, false};
}

}  // namespace sluice::grammar
