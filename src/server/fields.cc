// SPDX-License-Identifier: Apache-2.0
#include "server/fields.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "io/quote.h"
#include "server/api_error.h"
#include "server/refusal_reasons.h"

namespace sluice::server {

using io::JsonValue;

JsonValue parse_body(std::string_view body) {
  if (body.empty()) refuse("", "the request's body is empty; accepted: a JSON object");
  JsonValue value = io::parse_json_value(body, "the request's body");
  if (value.as<JsonValue::Object>() == nullptr)
    refuse("", fmt::format("the request's body is {}; accepted: a JSON object", io::describe(value)));
  return value;
}

JsonValue parse_optional_body(std::string_view body) {
  return body.empty() ? JsonValue{JsonValue::Object()} : parse_body(body);
}

Fields::Fields(const JsonValue& object, std::string path) : object_(object), path_(std::move(path)) {}

void Fields::refuse(std::string_view key, const std::string& is_and_accepted, std::string code) const {
  const std::string name = path_ + std::string(key);
  server::refuse(name, name + " " + is_and_accepted, std::move(code));
}

void Fields::refuse_type(std::string_view key, const JsonValue& value, std::string_view accepted) const {
  refuse(key, fmt::format("is {}; accepted: {}", io::describe(value), accepted));
}

const JsonValue* Fields::find(std::string_view key) {
  if (!known_.contains(key)) known_.emplace(key);
  return object_.find(key);
}

std::optional<int64_t> Fields::integer(std::string_view key, int64_t min, int64_t max) {
  const JsonValue* value = find(key);
  if (value == nullptr) return std::nullopt;
  const auto* i = value->as<int64_t>();
  if (i == nullptr || *i < min || *i > max)
    refuse_type(key, *value,
                min == max ? fmt::format("{}", min)
                // Only who may send a negative number sends ones as large as this: a seed of 64 bits.
                : max == std::numeric_limits<int64_t>::max() && min >= 0
                    ? fmt::format("an integer, {} or more", min)
                    : fmt::format("an integer from {} to {}", min, max));
  return *i;
}

std::optional<double> Fields::number(std::string_view key, Interval range) {
  const JsonValue* value = find(key);
  if (value == nullptr) return std::nullopt;
  double d = std::nan("");
  if (const auto* i = value->as<int64_t>()) d = static_cast<double>(*i);
  if (const auto* f = value->as<double>()) d = *f;
  if (!(d >= range.min && d <= range.max) || (range.open_min && d == range.min)) {
    const char* from = range.open_min ? "above" : "from";
    refuse_type(key, *value,
                std::isinf(range.max) ? fmt::format("a number {} {} on", from, range.min)
                                      : fmt::format("a number {} {} to {}", from, range.min, range.max));
  }
  return d;
}

std::optional<bool> Fields::boolean(std::string_view key) {
  const JsonValue* value = find(key);
  if (value == nullptr) return std::nullopt;
  const auto* b = value->as<bool>();
  if (b == nullptr) refuse_type(key, *value, "true or false");
  return *b;
}

std::optional<std::string> Fields::string(std::string_view key) {
  const JsonValue* value = find(key);
  if (value == nullptr) return std::nullopt;
  const auto* s = value->as<std::string>();
  if (s == nullptr) refuse_type(key, *value, "a string");
  return *s;
}

std::vector<std::string> Fields::string_or_strings(std::string_view key, size_t most) {
  const JsonValue* value = find(key);
  if (value == nullptr) return {};
  if (const auto* s = value->as<std::string>()) return {*s};
  const auto* array = value->as<JsonValue::Array>();
  if (array == nullptr || array->size() > most)
    refuse_type(key, *value, fmt::format("a string or an array of at most {}", most));
  std::vector<std::string> out;
  for (const JsonValue& item : *array) {
    const auto* s = item.as<std::string>();
    if (s == nullptr) refuse(key, fmt::format("holds {}; accepted: strings", io::describe(item)));
    out.push_back(*s);
  }
  return out;
}

std::vector<int32_t> Fields::token_ids(std::string_view key, size_t most, int64_t vocab) {
  const JsonValue* value = find(key);
  if (value == nullptr) return {};
  const auto* array = value->as<JsonValue::Array>();
  if (array == nullptr || array->size() > most)
    refuse_type(key, *value, fmt::format("an array of at most {} token ids", most));
  std::vector<int32_t> out;
  for (const JsonValue& item : *array) {
    const auto* id = item.as<int64_t>();
    if (id == nullptr || *id < 0 || *id >= vocab)
      refuse(key, fmt::format("holds {}; accepted: token ids from 0 to {}", io::describe(item), vocab - 1));
    out.push_back(static_cast<int32_t>(*id));
  }
  return out;
}

std::optional<std::string> Fields::accept_only(std::string_view key, std::initializer_list<std::string_view> values) {
  const auto value = string(key);
  if (value && std::find(values.begin(), values.end(), *value) == values.end())
    refuse(key, fmt::format("is {}; accepted: {}", io::quote(*value), fmt::join(values, ", ")),
           "unsupported_parameter");
  return value;
}

void Fields::ignore(std::initializer_list<std::string_view> keys) {
  for (const std::string_view key : keys) known_.emplace(key);
}

namespace {
std::optional<double> number_of(const JsonValue& v) {
  if (const auto* i = v.as<int64_t>()) return static_cast<double>(*i);
  if (const auto* d = v.as<double>()) return *d;
  return std::nullopt;
}

bool asks_for_nothing(const JsonValue& v) {
  if (const auto* b = v.as<bool>()) return !*b;
  if (const auto d = number_of(v)) return *d == 0;
  if (const auto* s = v.as<std::string>()) return s->empty();
  if (const auto* a = v.as<JsonValue::Array>()) return a->empty();
  if (const auto* o = v.as<JsonValue::Object>()) return o->empty();
  return false;
}
}  // namespace

void Fields::refuse_unless_empty(std::initializer_list<std::string_view> keys) {
  for (const std::string_view key : keys) {
    const JsonValue* value = find(key);
    if (value != nullptr && !asks_for_nothing(*value))
      refuse(key, fmt::format("is not supported: {}; leave it out", refusal_reason(key)), "unsupported_parameter");
  }
}

void Fields::refuse_unless_neutral(std::string_view key, const JsonValue& neutral) {
  const JsonValue* value = find(key);
  if (value == nullptr) return;
  const auto number = number_of(neutral);
  if (number ? number_of(*value) != number : value->value != neutral.value) refuse_unless_empty({key});
}

void Fields::finish(UnknownFields& unknown) const {
  for (const io::JsonMember& member : *object_.as<JsonValue::Object>()) {
    if (known_.contains(member.key) || member.value.is_null()) continue;
    const std::string_view reason = refusal_reason(member.key);
    if (reason.empty() || !asks_for_nothing(member.value)) unknown.meet(path_ + io::printable(member.key, 100), reason);
  }
}

}  // namespace sluice::server
