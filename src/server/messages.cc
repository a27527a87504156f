// SPDX-License-Identifier: Apache-2.0
#include "server/messages.h"

#include <algorithm>
#include <array>

#include "io/quote.h"
#include "io/template_value.h"
#include "server/api_error.h"

namespace sluice::server {

using io::JsonValue;
using text::jinja::Value;

namespace {
// Kinds of content parts that are text, and the field that holds it.
struct PartKind {
  std::string_view type, text;
};
constexpr std::array<PartKind, 2> kPartKinds{{{"text", "text"}, {"refusal", "refusal"}}};

// The text of OpenAI's array of parts: their texts, one after the other.
std::string parts_text(const JsonValue::Array& parts, const std::string& path) {
  std::string text;
  for (size_t i = 0; i < parts.size(); ++i) {
    const std::string name = fmt::format("{}[{}]", path, i);
    if (parts[i].as<JsonValue::Object>() == nullptr)
      refuse(name, fmt::format("{} is {}; accepted: an object with type and text", name, io::describe(parts[i])));
    Fields part(parts[i], name + ".");
    const JsonValue* type = part.find("type");
    const auto* given = type == nullptr ? nullptr : type->as<std::string>();
    const auto* kind = std::find_if(kPartKinds.begin(), kPartKinds.end(),
                                    [&](const PartKind& k) { return given != nullptr && *given == k.type; });
    if (kind == kPartKinds.end())
      part.refuse("type",
                  fmt::format("is {}; accepted: \"text\", this model reads nothing else",
                              type == nullptr ? "missing" : io::describe(*type)),
                  "unsupported");
    const auto piece = part.string(kind->text);
    if (!piece) part.refuse(kind->text, "is missing; accepted: a string");
    text += *piece;
  }
  return text;
}

std::string content_text(Fields& message, const std::string& path, std::string_view role) {
  const JsonValue* content = message.find("content");
  if (content == nullptr) {
    // An assistant's message may consist of reasoning, a refusal or calls alone.
    if (role == "assistant") return message.string("refusal").value_or("");
    message.refuse("content", "is missing; accepted: a string or an array of text parts");
  }
  if (const auto* s = content->as<std::string>()) return *s;
  const auto* parts = content->as<JsonValue::Array>();
  if (parts == nullptr) message.refuse_type("content", *content, "a string or an array of text parts");
  return parts_text(*parts, path + "content");
}

// A call's arguments for a template: an object, as transformers wants it. Arguments that are no object stay as they
// are: a model's own broken call must not end its conversation.
Value arguments_value(const JsonValue* json, const ServedModel& model, const MessageForm& form, Messages& out) {
  if (json == nullptr) return form.arguments_as_text ? Value("{}") : Value::dict({});
  const auto* text = json->as<std::string>();
  if (text == nullptr || form.arguments_as_text) return to_template_value(*json, model);
  if (text->empty()) return Value::dict({});
  try {
    const JsonValue parsed = io::parse_json_value(*text, "arguments");
    if (parsed.as<JsonValue::Object>() != nullptr) {
      out.has_arguments = true;
      return to_template_value(parsed, model);
    }
  } catch (const Error&) {
  }
  return model.guard(*text);
}

Value read_calls(const JsonValue& json, const std::string& path, const ServedModel& model, const MessageForm& form,
                 Messages& out) {
  const auto* array = json.as<JsonValue::Array>();
  if (array == nullptr)
    refuse(path, fmt::format("{} is {}; accepted: an array of objects with id and function", path, io::describe(json)));
  text::jinja::Items calls;
  for (size_t i = 0; i < array->size(); ++i) {
    const std::string name = fmt::format("{}[{}]", path, i);
    const JsonValue& item = (*array)[i];
    const JsonValue* inner = item.find("function");
    if (inner == nullptr || inner->as<JsonValue::Object>() == nullptr)
      refuse(name + ".function", fmt::format("{}.function is {}; accepted: an object with name and arguments", name,
                                             inner == nullptr ? "missing" : io::describe(*inner)));
    Fields call(item, name + "."), function(*inner, name + ".function.");
    const auto called = function.string("name");
    if (!called || called->empty()) function.refuse("name", "is missing; accepted: the name of a function");
    const JsonValue* arguments = function.find("arguments");
    if (arguments != nullptr && arguments->as<std::string>() == nullptr &&
        arguments->as<JsonValue::Object>() == nullptr)
      function.refuse_type("arguments", *arguments, "the text of a JSON object");
    text::jinja::Fields value;
    if (const auto id = call.string("id")) value.emplace_back("id", model.guard(*id));
    value.emplace_back("type", "function");
    value.emplace_back("function", Value::dict({{"name", model.guard(*called)},
                                                {"arguments", arguments_value(arguments, model, form, out)}}));
    calls.push_back(Value::dict(std::move(value)));
  }
  return Value::list(std::move(calls));
}

Value read_message(const JsonValue& json, size_t index, const ServedModel& model, const MessageForm& form, bool last,
                   Messages& out) {
  const std::string name = fmt::format("messages[{}]", index);
  if (json.as<JsonValue::Object>() == nullptr)
    refuse(name, fmt::format("{} is {}; accepted: an object with role and content", name, io::describe(json)));
  Fields fields(json, name + ".");
  const auto role = fields.string("role");
  if (!role || !text::is_chat_role(*role))
    fields.refuse("role", fmt::format("is {}; accepted: {}", role ? io::quote(*role) : "missing",
                                      fmt::join(text::kChatRoles, ", ")));
  out.last_role = *role;
  out.last_content = content_text(fields, name + ".", *role);
  text::jinja::Fields message;
  message.emplace_back("role", *role == "developer" ? std::string("system") : *role);
  std::string content = model.guard(out.last_content);
  if (form.continued && last) content.append(kContinueMark).append(" ");
  const JsonValue* calls = fields.find("tool_calls");
  const bool calls_alone = calls != nullptr && fields.find("content") == nullptr && content.empty();
  message.emplace_back("content", calls_alone && form.null_content ? Value(nullptr) : Value(std::move(content)));
  // The template gets these as they are.
  for (const char* key : {"name", "reasoning_content", "tool_call_id"})
    if (const JsonValue* value = fields.find(key)) message.emplace_back(key, to_template_value(*value, model));
  if (calls != nullptr) {
    message.emplace_back("tool_calls", read_calls(*calls, name + ".tool_calls", model, form, out));
    // A template without tools may still show calls.
    if (!calls->as<JsonValue::Array>()->empty() && model.chat_template_text().find("tool_calls") == std::string::npos)
      check_template_knows_tools(fields, "tool_calls", model);
  }
  // vLLM's and OpenRouter's name for reasoning_content.
  if (const JsonValue* thought = fields.find("reasoning"); thought != nullptr && !fields.has("reasoning_content"))
    if (const auto* s = thought->as<std::string>()) message.emplace_back("reasoning_content", model.guard(*s));
  fields.refuse_unless_empty({"audio", "function_call"});
  return Value::dict(std::move(message));
}
}  // namespace

Value to_template_value(const JsonValue& json, const ServedModel& model) {
  return io::to_template_value(json, model.special_guard());
}

void check_template_knows_tools(const Fields& fields, std::string_view key, const ServedModel& model) {
  if (model.chat_template_text().find("tools") == std::string::npos)
    fields.refuse(
        key, "cannot be shown to this model: its chat template knows none; start the server with another chat template",
        "unsupported_parameter");
}

Messages read_messages(Fields& fields, const ServedModel& model, const MessageForm& form) {
  const JsonValue* messages = fields.find("messages");
  const auto* array = messages == nullptr ? nullptr : messages->as<JsonValue::Array>();
  if (array == nullptr || array->empty())
    fields.refuse("messages", fmt::format("is {}; accepted: an array of at least one message",
                                          messages == nullptr ? "missing" : io::describe(*messages)));
  Messages out;
  text::jinja::Items items;
  for (size_t i = 0; i < array->size(); ++i)
    items.push_back(read_message((*array)[i], i, model, form, i + 1 == array->size(), out));
  out.list = Value::list(std::move(items));
  return out;
}

}  // namespace sluice::server
