// SPDX-License-Identifier: Apache-2.0
#include "io/json_value.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "io/quote.h"

namespace sluice::io {

bool JsonValue::operator==(const JsonValue& other) const { return value == other.value; }

const JsonValue* JsonValue::find(std::string_view key) const {
  const JsonValue* found = member(key);
  return found == nullptr || found->is_null() ? nullptr : found;
}

const JsonValue* JsonValue::member(std::string_view key) const {
  if (const auto* object = as<Object>())
    for (const JsonMember& m : *object)
      if (m.key == key) return &m.value;
  return nullptr;
}

JsonValue* JsonValue::member(std::string_view key) { return const_cast<JsonValue*>(std::as_const(*this).member(key)); }

namespace {
class TreeBuilder final : public JsonEvents {
 public:
  explicit TreeBuilder(std::string_view source) : source_(source) {}

  void null() override { place({}); }
  void boolean(bool v) override { place({v}); }
  void integer(int64_t v) override { place({v}); }
  void real(double v) override { place({v}); }
  void string(std::string& v) override { place({std::move(v)}); }
  void key(std::string& v) override { key_ = std::move(v); }
  void begin_object() override { open_.push_back(place({JsonValue::Object()})); }
  void begin_array() override { open_.push_back(place({JsonValue::Array()})); }
  void end_array() override { open_.pop_back(); }
  void end_object() override {
    refuse_duplicates(std::get<JsonValue::Object>(open_.back()->value));
    open_.pop_back();
  }

  JsonValue take() { return std::move(root_); }

 private:
  // Appends to the innermost open container. The pointer is good while that container is the innermost one but one,
  // because only then may it grow and move its elements.
  JsonValue* place(JsonValue v) {
    if (open_.empty()) return &(root_ = std::move(v));
    if (auto* array = std::get_if<JsonValue::Array>(&open_.back()->value)) return &array->emplace_back(std::move(v));
    auto& object = std::get<JsonValue::Object>(open_.back()->value);
    return &object.emplace_back(JsonMember{std::move(key_), std::move(v)}).value;
  }

  void refuse_duplicates(const JsonValue::Object& object) const {
    std::vector<std::string_view> keys;
    keys.reserve(object.size());
    for (const JsonMember& member : object) keys.push_back(member.key);
    std::sort(keys.begin(), keys.end());
    const auto twice = std::adjacent_find(keys.begin(), keys.end());
    if (twice != keys.end()) fail(ErrorCode::bad_file, "{} has the key {} twice in one object", source_, quote(*twice));
  }

  std::string_view source_;
  JsonValue root_;
  std::string key_;
  std::vector<JsonValue*> open_;
};
}  // namespace

JsonValue parse_json_value(std::string_view text, std::string_view source, JsonDialect dialect) {
  TreeBuilder builder(source);
  parse_json(text, source, builder, dialect);
  return builder.take();
}

JsonValue parse_json_argument(std::string_view text, std::string_view name) {
  try {
    return parse_json_value(text, name);
  } catch (const Error& e) {
    throw Error(ErrorCode::invalid_argument, e.what());
  }
}

std::string describe(const JsonValue& value) {
  if (const auto* b = value.as<bool>()) return *b ? "true" : "false";
  if (const auto* i = value.as<int64_t>()) return std::to_string(*i);
  if (const auto* d = value.as<double>()) return number_text(*d);
  if (const auto* s = value.as<std::string>()) return quote(*s);
  if (const auto* a = value.as<JsonValue::Array>())
    return a->size() == 1 ? "an array of 1 value" : fmt::format("an array of {} values", a->size());
  if (value.as<JsonValue::Object>()) {
    // transformers 5 spells infinities and NaN as an object.
    if (const auto* name = value.find("__float__"); name && name->as<std::string>())
      return printable(*name->as<std::string>());
    return "an object";
  }
  return "null";
}

}  // namespace sluice::io
