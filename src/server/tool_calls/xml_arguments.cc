// SPDX-License-Identifier: Apache-2.0
#include "server/tool_calls/xml_arguments.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <vector>

#include "base/error.h"
#include "server/json_out.h"
#include "server/tool_calls/block_text.h"
#include "server/tool_calls/json_scanner.h"

namespace sluice::server {

using io::JsonValue;

namespace {
// What a parameter may be.
struct Types {
  bool text = false, null = false, boolean = false, number = false, container = false;
  std::vector<const JsonValue*> values;  // of enum and const
  struct Number {
    bool whole;
    const JsonValue* bounds;  // the schema
  };
  std::vector<Number> numbers;

  bool only_text() const {
    const auto is_text = [](const JsonValue* v) { return v->as<std::string>() != nullptr; };
    return !null && !boolean && !number && !container && std::all_of(values.begin(), values.end(), is_text);
  }
  void add(std::string_view name, const JsonValue& schema) {
    text = text || name == "string";
    null = null || name == "null";
    boolean = boolean || name == "boolean";
    container = container || name == "object" || name == "array";
    if (name != "integer" && name != "number") return;
    number = true;
    numbers.push_back({name == "integer", &schema});
  }
  void add_value(const JsonValue& value) {
    values.push_back(&value);
    text = text || value.as<std::string>() != nullptr;
  }
  void add_type_of(const JsonValue& value) {
    null = null || value.is_null();
    boolean = boolean || value.as<bool>() != nullptr;
    number = number || as_number(value);
    container = container || value.as<JsonValue::Array>() != nullptr || value.as<JsonValue::Object>() != nullptr;
  }

  static std::optional<double> as_number(const JsonValue& value) {
    if (const auto* i = value.as<int64_t>()) return static_cast<double>(*i);
    if (const auto* d = value.as<double>()) return *d;
    return std::nullopt;
  }
};

// The schema that "#/$defs/Name" refers to, or nullptr.
const JsonValue* referred(const JsonValue& root, std::string_view reference) {
  if (!reference.starts_with("#/")) return nullptr;
  const JsonValue* at = &root;
  for (size_t begin = 2; at != nullptr && begin <= reference.size();) {
    const size_t end = std::min(reference.find('/', begin), reference.size());
    at = at->find(reference.substr(begin, end - begin));
    begin = end + 1;
  }
  return at;
}

// What Python prints as JSON has it.
std::string_view plain(std::string_view text) {
  return text == "None" ? "null" : text == "True" ? "true" : text == "False" ? "false" : text;
}

std::optional<JsonValue> parsed(std::string_view json) {
  try {
    return io::parse_json_value(json, "the argument");
  } catch (const Error&) {  // a key twice, or a number out of range
    return std::nullopt;
  }
}

bool is_same(const JsonValue& a, const JsonValue& b) {
  const auto number = Types::as_number(a);
  return number ? number == Types::as_number(b) : a == b;
}

bool is_within(double value, const Types::Number& number) {
  const auto keeps = [&](const char* key, auto compare) {
    const JsonValue* bound = number.bounds->find(key);
    const auto at = bound == nullptr ? std::nullopt : Types::as_number(*bound);
    return !at || compare(value, *at);
  };
  return (!number.whole || value == std::floor(value)) && keeps("minimum", std::greater_equal()) &&
         keeps("maximum", std::less_equal()) && keeps("exclusiveMinimum", std::greater()) &&
         keeps("exclusiveMaximum", std::less());
}

// depth: schemas may refer to themselves.
void collect(const JsonValue& schema, const JsonValue& root, int depth, Types& types) {
  if (depth == 0) return;
  const JsonValue *fixed = schema.member("const"), *values = schema.find("enum");
  const auto* list = values == nullptr ? nullptr : values->as<JsonValue::Array>();
  if (fixed != nullptr) types.add_value(*fixed);
  for (size_t i = 0; list != nullptr && i < list->size(); ++i) types.add_value((*list)[i]);
  if (fixed != nullptr || list != nullptr) return;  // whatever the type says
  if (const JsonValue* type = schema.find("type")) {
    if (const auto* name = type->as<std::string>()) types.add(*name, schema);
    if (const auto* several = type->as<JsonValue::Array>())
      for (const JsonValue& one : *several)
        if (const auto* name = one.as<std::string>()) types.add(*name, schema);
  } else if (schema.find("properties") != nullptr || schema.find("items") != nullptr) {
    types.container = true;
  }
  for (const char* key : {"anyOf", "oneOf", "allOf"})
    if (const JsonValue* parts = schema.find(key))
      if (const auto* several = parts->as<JsonValue::Array>())
        for (const JsonValue& part : *several) collect(part, root, depth - 1, types);
  if (const JsonValue* reference = schema.find("$ref"))
    if (const auto* name = reference->as<std::string>())
      if (const JsonValue* target = referred(root, *name)) collect(*target, root, depth - 1, types);
}

Types types_of(const JsonValue& parameters, std::string_view key) {
  Types types;
  if (const JsonValue* properties = parameters.find("properties"))
    if (const JsonValue* schema = properties->find(key)) collect(*schema, parameters, 8, types);
  return types;
}

// Without the beginning of a character at its end: half of one would be written as U+FFFD.
std::string_view whole_characters(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  for (size_t n = 1; n <= std::min<size_t>(3, text.size()); ++n) {
    const size_t first = text.size() - n;
    if ((byte(first) & 0xC0) == 0x80) continue;
    const size_t length = byte(first) >= 0xF0 ? 4 : byte(first) >= 0xE0 ? 3 : byte(first) >= 0xC0 ? 2 : 1;
    return text.substr(0, length > n ? first : text.size());
  }
  return text;
}

// A string without its quotes.
std::string escaped(std::string_view text) {
  const std::string quoted = json_text(text);
  return quoted.substr(1, quoted.size() - 2);
}
}  // namespace

std::string xml_value_json(std::string_view text, const JsonValue& parameters, std::string_view key) {
  Types types = types_of(parameters, key);
  if (types.only_text()) return json_text(text);
  const auto is_text = [&](const JsonValue* v) {
    const auto* string = v->as<std::string>();
    return string != nullptr && *string == text;
  };
  if (std::any_of(types.values.begin(), types.values.end(), is_text)) return json_text(text);
  const std::string_view json = plain(trimmed(text));
  if (!is_json(json)) return json_text(text);
  const std::optional<JsonValue> value = parsed(json);
  for (const JsonValue* v : types.values)
    if (value && is_same(*value, *v)) return std::string(json);
  // None of an enum's values: of their type at least, unless it may be a text of another schema.
  for (const JsonValue* v : types.values)
    if (!types.text) types.add_type_of(*v);
  const char first = json[0];
  const bool number = first == '-' || (first >= '0' && first <= '9');
  if (number && types.number && types.text && value) {
    const auto is_one = [&](const Types::Number& n) { return is_within(*Types::as_number(*value), n); };
    if (std::none_of(types.numbers.begin(), types.numbers.end(), is_one)) return json_text(text);
  }
  const bool fits = number                         ? types.number
                    : first == '{' || first == '[' ? types.container
                    : first == 'n'                 ? types.null
                                                   : types.boolean && first != '"';
  return fits ? std::string(json) : json_text(text);
}

bool XmlArguments::begin(std::string_view key) {
  if (!keys_.emplace(key).second) return false;
  if (json_.size() > 1) json_ += ',';
  json_.append(json_text(key)).append(":");
  key_ = key;
  written_ = 0;
  is_string_ = tool_ == nullptr || types_of(tool_->parameters, key).only_text();
  if (is_string_) json_ += '"';
  return true;
}

size_t XmlArguments::grow(std::string_view text) {
  text = whole_characters(text);
  if (is_string_ && text.size() > written_) {
    json_ += escaped(text.substr(written_));
    written_ = text.size();
  }
  return written_;
}

void XmlArguments::end(std::string_view text) {
  if (is_string_)
    json_.append(escaped(text.substr(written_))).append("\"");
  else
    json_ += xml_value_json(text, tool_->parameters, key_);
}

}  // namespace sluice::server
