// SPDX-License-Identifier: Apache-2.0
// A small JSON document as a tree, in file order: configs and tokenizers, not tensor headers.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "io/json.h"

namespace sluice::io {

struct JsonMember;

struct JsonValue {
  using Array = std::vector<JsonValue>;
  using Object = std::vector<JsonMember>;
  std::variant<std::monostate, bool, int64_t, double, std::string, Array, Object> value;

  bool is_null() const { return std::holds_alternative<std::monostate>(value); }
  // The value as a T of the list above, or nullptr.
  template <class T>
  const T* as() const {
    return std::get_if<T>(&value);
  }
  // The member, or nullptr when there is none, it is null, or this is no object.
  const JsonValue* find(std::string_view key) const;
  // The member, which may be null, or nullptr when there is none, or this is no object.
  const JsonValue* member(std::string_view key) const;
  JsonValue* member(std::string_view key);

  bool operator==(const JsonValue& other) const;
};

struct JsonMember {
  std::string key;
  JsonValue value;
  bool operator==(const JsonMember&) const = default;
};

// Throws as parse_json, and bad_file for a key that occurs twice in one object (also when only its escapes differ).
JsonValue parse_json_value(std::string_view text, std::string_view source, JsonDialect dialect = JsonDialect::strict);
// The same of a caller's text, which is no file: throws invalid_argument in place of bad_file.
JsonValue parse_json_argument(std::string_view text, std::string_view name);

// The value for an error sentence: 7, "text" (shortened), an array of 3 values, an object.
std::string describe(const JsonValue& value);

}  // namespace sluice::io
