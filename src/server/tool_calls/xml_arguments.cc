// SPDX-License-Identifier: Apache-2.0
#include "server/tool_calls/xml_arguments.h"

#include <algorithm>

#include "server/json_out.h"
#include "server/tool_calls/block_text.h"
#include "server/tool_calls/json_scanner.h"

namespace sluice::server {

using io::JsonValue;

namespace {
struct Types {
  bool null = false, boolean = false, number = false, container = false;

  bool only_text() const { return !null && !boolean && !number && !container; }

  void add(std::string_view name) {
    null = null || name == "null";
    boolean = boolean || name == "boolean";
    number = number || name == "integer" || name == "number";
    container = container || name == "object" || name == "array";
  }
  void add_type_of(const JsonValue& value) {
    if (value.is_null()) null = true;
    if (value.as<bool>() != nullptr) boolean = true;
    if (value.as<int64_t>() != nullptr || value.as<double>() != nullptr) number = true;
    if (value.as<JsonValue::Array>() != nullptr || value.as<JsonValue::Object>() != nullptr) container = true;
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

// depth: schemas may refer to themselves.
void collect(const JsonValue& schema, const JsonValue& root, int depth, Types& types) {
  if (depth == 0) return;
  if (const JsonValue* type = schema.find("type")) {
    if (const auto* name = type->as<std::string>()) types.add(*name);
    if (const auto* several = type->as<JsonValue::Array>())
      for (const JsonValue& one : *several)
        if (const auto* name = one.as<std::string>()) types.add(*name);
  } else if (schema.find("properties") != nullptr || schema.find("items") != nullptr) {
    types.container = true;
  }
  if (const JsonValue* value = schema.find("const")) types.add_type_of(*value);
  if (const JsonValue* values = schema.find("enum"))
    if (const auto* list = values->as<JsonValue::Array>())
      for (const JsonValue& value : *list) types.add_type_of(value);
  for (const char* key : {"anyOf", "oneOf", "allOf"})
    if (const JsonValue* parts = schema.find(key))
      if (const auto* list = parts->as<JsonValue::Array>())
        for (const JsonValue& part : *list) collect(part, root, depth - 1, types);
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
  const Types types = types_of(parameters, key);
  const std::string_view value = trimmed(text);
  if (types.null && (value == "null" || value == "None")) return "null";
  if (types.boolean && (value == "true" || value == "True")) return "true";
  if (types.boolean && (value == "false" || value == "False")) return "false";
  const char first = value.empty() ? ' ' : value[0];
  const bool number = first == '-' || (first >= '0' && first <= '9'), container = first == '{' || first == '[';
  if (((types.number && number) || (types.container && container)) && is_json(value)) return std::string(value);
  return json_text(text);
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
