// SPDX-License-Identifier: Apache-2.0
#include "grammar/structural_tag.h"

#include "base/error.h"
#include "io/json_text.h"

namespace sluice::grammar {

namespace {
using io::JsonMember;
using io::JsonValue;

JsonValue text(std::string_view s) { return {std::string(s)}; }

const std::string& string_member(const JsonValue& object, const char* key, size_t index) {
  const JsonValue* value = object.find(key);
  const auto* string = value == nullptr ? nullptr : value->as<std::string>();
  check(string != nullptr, "structures[{}].{} is {}; accepted: a string", index, key,
        value == nullptr ? "absent" : io::describe(*value));
  return *string;
}
}  // namespace

Source structural_tag(std::span<const std::string> triggers, std::span<const TagStructure> structures,
                      const TagOptions& options) {
  JsonValue::Array names, tags;
  for (const std::string& trigger : triggers) names.push_back(text(trigger));
  for (const TagStructure& s : structures) {
    JsonValue content{JsonValue::Object{{"type", text("json_schema")}, {"json_schema", s.schema}}};
    tags.push_back({JsonValue::Object{
        {"type", text("tag")}, {"begin", text(s.begin)}, {"content", std::move(content)}, {"end", text(s.end)}}});
  }
  JsonValue format{JsonValue::Object{{"type", text("triggered_tags")},
                                     {"triggers", {std::move(names)}},
                                     {"tags", {std::move(tags)}},
                                     {"at_least_one", {options.at_least_one}},
                                     {"stop_after_first", {options.stop_after_first}}}};
  return {Kind::structural_tag,
          io::to_json_line({JsonValue::Object{{"type", text("structural_tag")}, {"format", std::move(format)}}})};
}

Source structural_tag(const JsonValue& given) {
  check(given.as<JsonValue::Object>() != nullptr, "the structural tag is {}; accepted: an object", io::describe(given));
  if (given.find("format") != nullptr) return {Kind::structural_tag, io::to_json_line(given)};
  const JsonValue* structures = given.find("structures");
  const JsonValue* triggers = given.find("triggers");
  const auto* list = structures == nullptr ? nullptr : structures->as<JsonValue::Array>();
  const auto* names = triggers == nullptr ? nullptr : triggers->as<JsonValue::Array>();
  check(list != nullptr && names != nullptr,
        "the structural tag has neither format nor the arrays structures and triggers; accepted: one of the two forms");
  std::vector<std::string> begins;
  for (const JsonValue& name : *names) {
    const auto* string = name.as<std::string>();
    check(string != nullptr, "triggers has {}; accepted: strings", io::describe(name));
    begins.push_back(*string);
  }
  std::vector<TagStructure> parts;
  for (size_t i = 0; i < list->size(); ++i) {
    const JsonValue& one = (*list)[i];
    const JsonValue* schema = one.find("schema");
    if (schema == nullptr) schema = one.find("json_schema");
    parts.push_back(
        {string_member(one, "begin", i), schema == nullptr ? JsonValue{true} : *schema, string_member(one, "end", i)});
  }
  return structural_tag(begins, parts);
}

}  // namespace sluice::grammar
