// SPDX-License-Identifier: Apache-2.0
// How each API writes tools, and which of them may be called.
#include "io/quote.h"
#include "server/api_error.h"
#include "server/tools.h"

namespace sluice::server {

using io::JsonValue;

namespace {
constexpr std::string_view kWords = "auto, none, required or an object";

// The name of one of the tools, in `key`.
std::string tool_name(Fields& named, const Tools& tools) {
  const auto name = named.string("name");
  if (!name || find_tool(tools, *name) == nullptr)
    named.refuse("name",
                 fmt::format("is {}; accepted: the name of one of the tools", name ? io::quote(*name) : "missing"));
  return *name;
}

const JsonValue& object_in(Fields& fields, std::string_view key, std::string_view accepted) {
  const JsonValue* value = fields.find(key);
  if (value == nullptr) fields.refuse(key, fmt::format("is missing; accepted: {}", accepted));
  if (value->as<JsonValue::Object>() == nullptr) fields.refuse_type(key, *value, accepted);
  return *value;
}

// OpenAI's two APIs name a function in an object of its own, or beside the type.
std::string function_name(Fields& typed, const std::string& path, bool nested, const Tools& tools) {
  if (!nested) return tool_name(typed, tools);
  Fields function(object_in(typed, "function", "an object with a name"), path + "function.");
  return tool_name(function, tools);
}

// {"mode": "auto" | "required", "tools": [...]}
void read_allowed(Fields& allowed, const std::string& path, bool nested, const Tools& tools, ToolChoice& out) {
  const std::string mode = allowed.string("mode").value_or("auto");
  if (mode != "auto" && mode != "required")
    allowed.refuse("mode", fmt::format("is {}; accepted: auto, required", io::quote(mode)));
  out.required = mode == "required";
  const JsonValue* list = allowed.find("tools");
  const auto* array = list == nullptr ? nullptr : list->as<JsonValue::Array>();
  if (array == nullptr || array->empty())
    allowed.refuse("tools", fmt::format("is {}; accepted: an array of at least one function",
                                        list == nullptr ? "missing" : io::describe(*list)));
  for (size_t i = 0; i < array->size(); ++i) {
    const std::string name = fmt::format("{}tools[{}]", path, i);
    if ((*array)[i].as<JsonValue::Object>() == nullptr)
      refuse(name, fmt::format("{} is {}; accepted: an object with a type", name, io::describe((*array)[i])));
    Fields typed((*array)[i], name + ".");
    if (typed.string("type") != "function") typed.refuse("type", "is no function; accepted: \"function\"");
    out.allowed.push_back(function_name(typed, name + ".", nested, tools));
  }
}

ToolChoice openai_choice(Fields& fields, const Tools& tools, bool nested) {
  ToolChoice out;
  out.parallel = fields.boolean("parallel_tool_calls").value_or(true);
  const JsonValue* choice = fields.find("tool_choice");
  if (choice == nullptr) return out;
  if (const auto* word = choice->as<std::string>()) {
    if (*word != "auto" && *word != "none" && *word != "required")
      fields.refuse("tool_choice", fmt::format("is {}; accepted: {}", io::quote(*word), kWords));
    out.none = *word == "none";
    out.required = *word == "required";
    return out;
  }
  if (choice->as<JsonValue::Object>() == nullptr) fields.refuse_type("tool_choice", *choice, kWords);
  Fields typed(*choice, "tool_choice.");
  const auto type = typed.string("type");
  if (type == "function") {
    out.allowed = {function_name(typed, "tool_choice.", nested, tools)};
    out.required = true;
  } else if (type == "allowed_tools" && nested) {
    Fields allowed(object_in(typed, "allowed_tools", "an object with mode and tools"), "tool_choice.allowed_tools.");
    read_allowed(allowed, "tool_choice.allowed_tools.", nested, tools, out);
  } else if (type == "allowed_tools") {
    read_allowed(typed, "tool_choice.", nested, tools, out);
  } else {
    typed.refuse("type",
                 fmt::format("is {}; accepted: \"function\", \"allowed_tools\"", type ? io::quote(*type) : "missing"));
  }
  return out;
}

ToolChoice anthropic_choice(Fields& fields, const Tools& tools) {
  ToolChoice out;
  const JsonValue* choice = fields.find("tool_choice");
  if (choice == nullptr) return out;
  if (choice->as<JsonValue::Object>() == nullptr) fields.refuse_type("tool_choice", *choice, "an object with a type");
  Fields typed(*choice, "tool_choice.");
  const std::string type = typed.string("type").value_or("");
  if (type != "auto" && type != "any" && type != "tool" && type != "none")
    typed.refuse("type", fmt::format("is {}; accepted: auto, any, tool, none", io::quote(type)));
  out.none = type == "none";
  out.required = type == "any" || type == "tool";
  if (type == "tool") out.allowed = {tool_name(typed, tools)};
  out.parallel = !typed.boolean("disable_parallel_tool_use").value_or(false);
  return out;
}
}  // namespace

const ToolForm& chat_tools() {
  static const ToolForm form{
      "function",   true,  "function",
      "parameters", false, [](Fields& fields, const Tools& tools) { return openai_choice(fields, tools, true); }};
  return form;
}

const ToolForm& responses_tools() {
  static const ToolForm form{
      "function",   true,  "",
      "parameters", false, [](Fields& fields, const Tools& tools) { return openai_choice(fields, tools, false); }};
  return form;
}

const ToolForm& anthropic_tools() {
  static const ToolForm form{"custom", false, "", "input_schema", true, anthropic_choice};
  return form;
}

}  // namespace sluice::server
