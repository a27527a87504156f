// SPDX-License-Identifier: Apache-2.0
#include "io/json_text.h"

#include <fmt/format.h>

#include <algorithm>

namespace sluice::io {

namespace {

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out.append({'\\', c});
    } else if (static_cast<unsigned char>(c) < 0x20) {
      out += fmt::format("\\u{:04x}", static_cast<int>(c));
    } else {
      out += c;
    }
  }
  return out + "\"";
}

std::string number(double d) {
  std::string text = fmt::format("{}", d);  // the shortest that reads back as d
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

constexpr int kOneLine = -1;  // a depth

// Opens the next line of an object or array.
void next_line(bool first, int depth, std::string& out) {
  if (!first) out += ',';
  if (depth == kOneLine) return;
  out += '\n';
  out.append(2 * static_cast<size_t>(depth), ' ');
}

void write(const JsonValue& v, int depth, std::string& out) {
  const int inner = depth == kOneLine ? kOneLine : depth + 1;
  if (const auto* object = v.as<JsonValue::Object>()) {
    out += '{';
    for (const JsonMember& m : *object) {
      next_line(&m == object->data(), inner, out);
      out.append(quoted(m.key)).append(depth == kOneLine ? ":" : ": ");
      write(m.value, inner, out);
    }
    if (!object->empty()) next_line(true, depth, out);
    out += '}';
  } else if (const auto* array = v.as<JsonValue::Array>()) {
    out += '[';
    for (const JsonValue& element : *array) {
      next_line(&element == array->data(), inner, out);
      write(element, inner, out);
    }
    if (!array->empty()) next_line(true, depth, out);
    out += ']';
  } else if (const auto* text = v.as<std::string>()) {
    out += quoted(*text);
  } else if (const auto* integer = v.as<int64_t>()) {
    out += std::to_string(*integer);
  } else if (const auto* real = v.as<double>()) {
    out += number(*real);
  } else if (const auto* boolean = v.as<bool>()) {
    out += *boolean ? "true" : "false";
  } else {
    out += "null";
  }
}

}  // namespace

std::string to_json_text(const JsonValue& value) {
  std::string out;
  write(value, 0, out);
  return out + "\n";
}

std::string to_json_line(const JsonValue& value) {
  std::string out;
  write(value, kOneLine, out);
  return out;
}

void set_member(JsonValue& object, const std::string& key, JsonValue value) {
  auto& members = std::get<JsonValue::Object>(object.value);
  const auto it = std::find_if(members.begin(), members.end(), [&](const JsonMember& m) { return m.key == key; });
  if (value.is_null()) {
    if (it != members.end()) members.erase(it);
  } else if (it != members.end()) {
    it->value = std::move(value);
  } else {
    members.push_back({key, std::move(value)});
  }
}

}  // namespace sluice::io
