// SPDX-License-Identifier: Apache-2.0
#include "server/tools.h"

#include <algorithm>

#include "grammar/structural_tag.h"
#include "io/json_text.h"
#include "io/quote.h"
#include "server/api_error.h"
#include "server/json_out.h"
#include "server/messages.h"
#include "server/tool_calls/structural_tag.h"

namespace sluice::server {

using io::JsonValue;

namespace {
constexpr const char* kUnsupported = "unsupported_parameter";
constexpr size_t kLongestName = 64;

bool is_function_name(std::string_view name) {  // OpenAI's rule: a call's name without the dot
  return is_call_name(name) && name.find('.') == name.npos;
}

const JsonValue& object_at(const JsonValue* value, const std::string& path, std::string_view accepted) {
  if (value == nullptr || value->as<JsonValue::Object>() == nullptr)
    refuse(path,
           fmt::format("{} is {}; accepted: {}", path, value == nullptr ? "missing" : io::describe(*value), accepted));
  return *value;
}

// What Anthropic's tools have beside the function. Search, callers and examples would need words in the prompt that
// templates do not have.
void refuse_more(Fields& tool) {
  tool.refuse_unless_empty({"defer_loading", "input_examples"});
  const JsonValue* callers = tool.find("allowed_callers");
  if (callers == nullptr) return;
  const auto* list = callers->as<JsonValue::Array>();
  const auto* only = list != nullptr && list->size() == 1 ? list->front().as<std::string>() : nullptr;
  if (only == nullptr || *only != "direct")
    tool.refuse("allowed_callers", "is not [\"direct\"]: this server runs no code that could call tools", kUnsupported);
}

Tool read_tool(const JsonValue& json, const std::string& path, const std::string& inner, const ToolForm& form) {
  Fields outer(object_at(&json, path, "an object that describes a function"), path + ".");
  const auto type = outer.string("type");
  if (type ? *type != form.type : form.type_needed)
    outer.refuse("type",
                 fmt::format("is {}; accepted: \"{}\", as this server has no tools of its own",
                             type ? io::quote(*type) : "missing", form.type),
                 type ? kUnsupported : "");
  const bool nested = *form.inner != '\0';
  const JsonValue& described =
      nested ? object_at(outer.find(form.inner), path + "." + form.inner, "an object with a name") : json;
  Fields function(described, inner);
  Tool tool;
  const auto name = function.string("name");
  if (!name || !is_function_name(*name))
    function.refuse("name", fmt::format("is {}; accepted: 1 to {} of a-z, A-Z, 0-9, _ and -",
                                        name ? io::quote(*name) : "missing", kLongestName));
  tool.name = *name;
  tool.description = function.string("description").value_or("");
  tool.strict = function.boolean("strict").value_or(false);
  if (const JsonValue* parameters = function.find(form.parameters))
    tool.parameters = object_at(parameters, inner + form.parameters, "a JSON schema, which is an object");
  if (form.refuses_more) refuse_more(function);
  tool.eager = form.refuses_more && function.boolean("eager_input_streaming").value_or(false);
  return tool;
}

std::string path_of(const ToolForm& form, size_t index) {
  return fmt::format("tools[{}].{}{}", index, form.inner, *form.inner == '\0' ? "" : ".");
}

Tools read_all(const JsonValue& json, const ToolForm& form) {
  const auto* array = json.as<JsonValue::Array>();
  if (array == nullptr || array->size() > kMostTools)
    refuse("tools", fmt::format("tools is {}; accepted: an array of at most {}", io::describe(json), kMostTools));
  Tools tools;
  for (size_t i = 0; i < array->size(); ++i) {
    const std::string inner = path_of(form, i);
    Tool tool = read_tool((*array)[i], fmt::format("tools[{}]", i), inner, form);
    const auto same = std::find_if(tools.begin(), tools.end(), [&](const Tool& t) { return t.name == tool.name; });
    if (same != tools.end())
      refuse(inner + "name", fmt::format("{}name is {}, as tools[{}]'s; accepted: each name once", inner,
                                         io::quote(tool.name), same - tools.begin()));
    tools.push_back(std::move(tool));
  }
  return tools;
}

// As OpenAI's chat has them, which is what templates read.
JsonValue as_a_chat_has_them(const Tools& tools) {
  const auto text = [](const char* key, const std::string& value) { return io::JsonMember{key, {value}}; };
  JsonValue::Array out;
  for (const Tool& tool : tools) {
    JsonValue::Object function{text("name", tool.name)};
    if (!tool.description.empty()) function.push_back(text("description", tool.description));
    if (!tool.parameters.is_null()) function.push_back({"parameters", tool.parameters});
    out.push_back({JsonValue::Object{text("type", "function"), {"function", {std::move(function)}}}});
  }
  return {std::move(out)};
}

// The constraint as a part of a structural tag.
std::string as_format(const grammar::Source& source) {
  switch (source.kind) {
    case grammar::Kind::json_schema:
      return JsonObject().add("type", "json_schema").raw("json_schema", source.text).str();
    case grammar::Kind::regex:
      return JsonObject().add("type", "regex").add("pattern", source.text).str();
    case grammar::Kind::ebnf:
      return JsonObject().add("type", "grammar").add("grammar", source.text).str();
    default:
      return io::to_json_line(*io::parse_json_value(source.text, "the structural tag").find("format"));
  }
}
}  // namespace

ToolRequest read_tools(Fields& fields, const ServedModel& model, const CallFormat* format, const ToolForm& form) {
  ToolRequest out;
  const JsonValue* given = fields.find("tools");
  const auto* array = given == nullptr ? nullptr : given->as<JsonValue::Array>();
  const bool any = given != nullptr && (array == nullptr || !array->empty());
  if (any) check_template_knows_tools(fields, "tools", model);
  Tools tools = any ? read_all(*given, form) : Tools();
  out.choice = form.choice(fields, tools);
  if (tools.empty() && (out.choice.required || !out.choice.allowed.empty()))
    fields.refuse("tool_choice", "asks for a call, but there are no tools", kUnsupported);
  if (tools.empty() || out.choice.none) return out;
  if (format == nullptr)
    fields.refuse(
        "tools",
        "is given, but how this model writes calls is not known: its chat template shows none of the formats; "
        "start the server with a tool call parser",
        kUnsupported);
  if (out.choice.required || !out.choice.allowed.empty()) out.promise = "tool_choice";
  for (size_t i = 0; i < tools.size() && out.promise.empty(); ++i)
    if (tools[i].strict) out.promise = path_of(form, i) + "strict";
  out.for_template = to_template_value(*form.inner == '\0' ? as_a_chat_has_them(tools) : *given, model);
  out.tools = std::make_shared<const Tools>(std::move(tools));
  return out;
}

GivenConstraint call_constraint(const ToolRequest& request, const CallFormat& format,
                                const std::optional<GivenConstraint>& otherwise) {
  const ToolChoice& choice = request.choice;
  Tools tools;
  for (const Tool& tool : *request.tools)
    if (choice.allowed.empty() ||
        std::find(choice.allowed.begin(), choice.allowed.end(), tool.name) != choice.allowed.end())
      tools.push_back(tool);
  const std::string field = request.promise.empty() ? otherwise->field : request.promise;
  const std::string tag = structural_tag(
      format, tools, {choice.required, choice.parallel, otherwise ? as_format(otherwise->source) : std::string()});
  try {
    GivenConstraint out{grammar::structural_tag(io::parse_json_value(tag, field)), field};
    out.source.tags = call_tags(format);
    return out;
  } catch (const Error& error) {
    refuse(field, fmt::format("{}: {}", field, error.what()));
  }
}

}  // namespace sluice::server
