// SPDX-License-Identifier: Apache-2.0
#include "server/chat_prompt.h"

#include <algorithm>
#include <array>
#include <ctime>

#include "io/quote.h"
#include "server/api_error.h"

namespace sluice::server {

using io::JsonValue;
using text::jinja::Value;

namespace {
constexpr std::array<std::string_view, 5> kRoles{"system", "developer", "user", "assistant", "tool"};
// What a request may not say to a template: the rest of the request says it, or the checkpoint.
constexpr std::array<std::string_view, 9> kReserved{"messages",  "tools",     "documents", "add_generation_prompt",
                                                    "bos_token", "eos_token", "pad_token", "chat_template",
                                                    "tokenize"};

Value to_value(const JsonValue& json, const ServedModel& model) {
  if (const auto* b = json.as<bool>()) return *b;
  if (const auto* i = json.as<int64_t>()) return *i;
  if (const auto* d = json.as<double>()) return *d;
  if (const auto* s = json.as<std::string>()) return model.guard(*s);
  if (const auto* a = json.as<JsonValue::Array>()) {
    text::jinja::Items items;
    for (const JsonValue& v : *a) items.push_back(to_value(v, model));
    return Value::list(std::move(items));
  }
  if (const auto* o = json.as<JsonValue::Object>()) {
    text::jinja::Fields fields;
    for (const io::JsonMember& m : *o) fields.emplace_back(model.guard(m.key), to_value(m.value, model));
    return Value::dict(std::move(fields));
  }
  return nullptr;
}

// A string, or OpenAI's array of parts, whose texts are put one after the other.
std::string content_text(Fields& message) {
  const JsonValue* content = message.find("content");
  if (content == nullptr) message.refuse("content", "is missing; accepted: a string or an array of text parts");
  if (const auto* s = content->as<std::string>()) return *s;
  const auto* parts = content->as<JsonValue::Array>();
  if (parts == nullptr) message.refuse_type("content", *content, "a string or an array of text parts");
  std::string text;
  for (const JsonValue& part : *parts) {
    const JsonValue* type = part.find("type");
    const auto* name = type == nullptr ? nullptr : type->as<std::string>();
    if (name == nullptr || *name != "text")
      message.refuse("content",
                     fmt::format("has a part of type {}; accepted: \"text\", this model reads nothing else",
                                 type == nullptr ? "null" : io::describe(*type)),
                     "unsupported");
    Fields fields(part, "messages.content.");
    fields.ignore({"type"});
    const auto piece = fields.string("text");
    if (!piece) fields.refuse("text", "is missing; accepted: a string");
    fields.finish();
    text += *piece;
  }
  return text;
}

Value read_message(const JsonValue& json, size_t index, const ServedModel& model) {
  const std::string name = fmt::format("messages[{}]", index);
  if (json.as<JsonValue::Object>() == nullptr)
    refuse(name, fmt::format("{} is {}; accepted: an object with role and content", name, io::describe(json)));
  Fields fields(json, name + ".");
  const auto role = fields.string("role");
  if (!role || std::find(kRoles.begin(), kRoles.end(), *role) == kRoles.end())
    fields.refuse("role", fmt::format("is {}; accepted: system, developer, user, assistant, tool",
                                      role ? io::quote(*role) : "missing"));
  text::jinja::Fields out;
  out.emplace_back("role", *role == "developer" ? std::string("system") : *role);
  const bool may_lack_content = *role == "assistant" && fields.has("tool_calls");
  if (fields.has("content") || !may_lack_content)
    out.emplace_back("content", model.guard(content_text(fields)));
  else
    out.emplace_back("content", "");
  // Given to the template as they are.
  for (const char* key : {"name", "reasoning_content", "tool_call_id", "tool_calls"})
    if (const JsonValue* value = fields.find(key)) out.emplace_back(key, to_value(*value, model));
  fields.refuse_unless_empty({"refusal", "audio", "function_call"});
  fields.finish();
  return Value::dict(std::move(out));
}

text::jinja::Fields read_kwargs(Fields& fields, const ServedModel& model) {
  text::jinja::Fields extra;
  const JsonValue* kwargs = fields.find("chat_template_kwargs");
  if (kwargs == nullptr) return extra;
  const auto* object = kwargs->as<JsonValue::Object>();
  if (object == nullptr) fields.refuse_type("chat_template_kwargs", *kwargs, "an object");
  for (const io::JsonMember& m : *object) {
    if (std::find(kReserved.begin(), kReserved.end(), m.key) != kReserved.end())
      fields.refuse("chat_template_kwargs", fmt::format("has {}, which a request cannot choose", io::quote(m.key)));
    extra.emplace_back(m.key, to_value(m.value, model));
  }
  return extra;
}
}  // namespace

std::string render_chat(Fields& fields, const ServedModel& model) {
  const JsonValue* messages = fields.find("messages");
  const auto* array = messages == nullptr ? nullptr : messages->as<JsonValue::Array>();
  if (array == nullptr || array->empty())
    fields.refuse("messages", fmt::format("is {}; accepted: an array of at least one message",
                                          messages == nullptr ? "missing" : io::describe(*messages)));
  text::ChatOptions options;
  text::jinja::Items items;
  for (size_t i = 0; i < array->size(); ++i) items.push_back(read_message((*array)[i], i, model));
  options.messages = Value::list(std::move(items));
  options.extra = read_kwargs(fields, model);
  options.bos_token = model.tokenizer.bos_token();
  options.eos_token = model.tokenizer.eos_token();
  options.pad_token = model.tokenizer.pad_token();
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  options.now = *localtime_r(&now, &local);
  options.limits.steps = 50'000'000;  // a prompt of megabytes; about a second
  try {
    return model.chat_template().render(options);
  } catch (const Error& error) {
    refuse("messages", fmt::format("messages: {}", error.what()));
  }
}

}  // namespace sluice::server
