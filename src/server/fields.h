// SPDX-License-Identifier: Apache-2.0
// Typed access to a request's JSON object. Every getter names the field, its value and what is accepted; null counts as
// absent, as OpenAI's clients send it. What no getter asked for goes to finish(): no field is ignored in silence.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "io/json_value.h"
#include "server/unknown_fields.h"

namespace sluice::server {

// The request's body as an object. Throws ApiError 400: not JSON, nested too deeply, a key twice, not an object.
io::JsonValue parse_body(std::string_view body);
// The same; no body is an empty object.
io::JsonValue parse_optional_body(std::string_view body);

struct Interval {
  double min = -std::numeric_limits<double>::infinity(), max = std::numeric_limits<double>::infinity();
  bool open_min = false;  // min itself is not accepted
};

class Fields {
 public:
  // `object` must be an object and live longer. path: what error sentences put before a name ("sampling_params.").
  explicit Fields(const io::JsonValue& object, std::string path = "");

  const io::JsonValue* find(std::string_view key);  // null: absent or null
  bool has(std::string_view key) { return find(key) != nullptr; }
  std::optional<int64_t> integer(std::string_view key, int64_t min, int64_t max);
  std::optional<double> number(std::string_view key, Interval range);
  std::optional<bool> boolean(std::string_view key);
  std::optional<std::string> string(std::string_view key);
  std::vector<std::string> string_or_strings(std::string_view key, size_t most);
  // Ids below `vocab`.
  std::vector<int32_t> token_ids(std::string_view key, size_t most, int64_t vocab);

  // A string that may be one of `values`.
  std::optional<std::string> accept_only(std::string_view key, std::initializer_list<std::string_view> values);

  // Fields that say something about the request, but nothing about the answer.
  void ignore(std::initializer_list<std::string_view> keys);
  // Fields that would change the answer in a way that is not implemented: refused unless their value asks for nothing
  // (false, 0, an empty string, array or object). refusal_reasons.cc has the reason of each.
  void refuse_unless_empty(std::initializer_list<std::string_view> keys);
  // The same for a field that asks for nothing by `neutral`, too: a string or a number.
  void refuse_unless_neutral(std::string_view key, const io::JsonValue& neutral);
  // What nothing above has named is `unknown`'s to decide, but a known name (refusal_reason()) that asks for nothing.
  void finish(UnknownFields& unknown) const;

  [[noreturn]] void refuse(std::string_view key, const std::string& is_and_accepted, std::string code = "") const;
  [[noreturn]] void refuse_type(std::string_view key, const io::JsonValue& value, std::string_view accepted) const;

 private:
  const io::JsonValue& object_;
  std::string path_;
  std::set<std::string, std::less<>> known_;
};

}  // namespace sluice::server
