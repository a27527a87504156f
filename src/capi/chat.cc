// SPDX-License-Identifier: Apache-2.0
#include "capi/chat.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "io/json_value.h"
#include "io/template_value.h"
#include "text/chat_template.h"

namespace sluice::capi {

using io::JsonValue;

namespace {
bool is_empty(const JsonValue& value) {
  const auto* array = value.as<JsonValue::Array>();
  return array != nullptr && array->empty();
}

// What a template that does not know tools would leave out in silence.
void check_known(const std::string& name, const JsonValue* given, bool known) {
  if (given != nullptr && !given->is_null() && !is_empty(*given) && !known)
    fail(ErrorCode::unsupported, "{} cannot be shown to this model: its chat template knows none", name);
}

// The text of OpenAI's array of parts: their texts, one after the other.
std::string parts_text(const JsonValue::Array& parts, const std::string& path) {
  std::string text;
  for (size_t i = 0; i < parts.size(); ++i) {
    const JsonValue *type = parts[i].find("type"), *piece = parts[i].find("text");
    const auto* kind = type == nullptr ? nullptr : type->as<std::string>();
    const auto* words = piece == nullptr ? nullptr : piece->as<std::string>();
    check(kind != nullptr && *kind == "text" && words != nullptr,
          "{}[{}] is {}; accepted: an object with type \"text\" and a text, this model reads nothing else", path, i,
          type == nullptr ? io::describe(parts[i]) : fmt::format("of type {}", io::describe(*type)));
    text += *words;
  }
  return text;
}

// find() of a value that may be changed.
JsonValue* member_of(JsonValue& value, std::string_view key) { return const_cast<JsonValue*>(value.find(key)); }

// A call's arguments as an object, as transformers hands them to a template. What is no object's text stays as it is.
// Whether any became one.
bool read_arguments(JsonValue& calls) {
  bool any = false;
  auto* list = std::get_if<JsonValue::Array>(&calls.value);
  for (size_t i = 0; list != nullptr && i < list->size(); ++i) {
    JsonValue* function = member_of((*list)[i], "function");
    JsonValue* arguments = function == nullptr ? nullptr : member_of(*function, "arguments");
    const auto* text = arguments == nullptr ? nullptr : arguments->as<std::string>();
    if (text == nullptr) continue;
    try {
      JsonValue parsed = io::parse_json_value(*text, "arguments");
      if (parsed.as<JsonValue::Object>() == nullptr) continue;
      *arguments = std::move(parsed);
      any = true;
    } catch (const Error&) {
    }
  }
  return any;
}

// Leaves a content that templates read: a text, or null in a message of calls alone.
void read_message(JsonValue& message, const std::string& path, bool knows_calls) {
  auto* members = std::get_if<JsonValue::Object>(&message.value);
  const JsonValue* role = message.find("role");
  check(members != nullptr && role != nullptr, "messages holds {}; accepted: objects with role and content",
        io::describe(message));
  const auto* role_name = role->as<std::string>();
  check(role_name != nullptr && text::is_chat_role(*role_name), "{}.role is {}; accepted: {}", path,
        io::describe(*role), fmt::join(text::kChatRoles, ", "));
  const JsonValue* calls = message.find("tool_calls");
  check_known(path + ".tool_calls", calls, knows_calls);
  const bool has_calls = calls != nullptr && !is_empty(*calls);
  const bool assistant = *role_name == "assistant";
  const std::string name = path + ".content";
  constexpr std::string_view kAccepted = "a string or an array of text parts";
  auto at = std::find_if(members->begin(), members->end(), [](const auto& m) { return m.key == "content"; });
  if (at == members->end()) at = members->insert(at, io::JsonMember{"content", {}});
  if (at->value.is_null()) {
    // An assistant's message may consist of reasoning or calls alone.
    check(assistant, "{} is missing; accepted: {}", name, kAccepted);
    if (!has_calls) at->value = JsonValue{std::string()};
  } else if (const auto* parts = at->value.as<JsonValue::Array>()) {
    at->value = JsonValue{parts_text(*parts, name)};
  } else {
    check(at->value.as<std::string>() != nullptr, "{} is {}; accepted: {}", name, io::describe(at->value), kAccepted);
  }
}

text::jinja::Fields read_variables(const char* given, const text::SpecialGuard& special, bool knows_tools) {
  text::jinja::Fields extra;
  if (given == nullptr) return extra;
  const JsonValue json = io::parse_json_argument(given, "variables");
  const auto* object = json.as<JsonValue::Object>();
  check(object != nullptr, "variables is {}; accepted: a JSON object", io::describe(json));
  check_known("tools", json.find("tools"), knows_tools);
  for (const io::JsonMember& m : *object) extra.emplace_back(m.key, io::to_template_value(m.value, special));
  return extra;
}
}  // namespace

std::vector<int32_t> encode_chat(const text::Tokenizer& tokenizer, const text::SpecialGuard& special,
                                 const char* messages, const char* variables, bool generation_prompt) {
  const std::string& source = tokenizer.chat_template();
  const text::ChatTemplate chat(source, "the checkpoint's chat template");
  const bool knows_tools = source.find("tools") != std::string::npos;
  const bool knows_calls = knows_tools || source.find("tool_calls") != std::string::npos;
  JsonValue json = io::parse_json_argument(messages, "messages");
  auto* list = std::get_if<JsonValue::Array>(&json.value);
  check(list != nullptr && !list->empty(), "messages is {}; accepted: a JSON array of at least one message",
        io::describe(json));
  for (size_t i = 0; i < list->size(); ++i) read_message((*list)[i], fmt::format("messages[{}]", i), knows_calls);
  text::ChatOptions options;
  options.add_generation_prompt = generation_prompt;
  options.extra = read_variables(variables, special, knows_tools);
  options.bos_token = tokenizer.bos_token();
  options.eos_token = tokenizer.eos_token();
  options.pad_token = tokenizer.pad_token();
  options.now = text::local_time();
  const auto render = [&] {
    options.messages = io::to_template_value(json, special);
    return special.encode(tokenizer, chat.render(options));
  };
  const JsonValue with_texts = json;
  bool has_arguments = false;
  for (JsonValue& message : *list)
    if (JsonValue* calls = member_of(message, "tool_calls")) has_arguments |= read_arguments(*calls);
  try {
    return render();
  } catch (const Error&) {
    if (!has_arguments) throw;
    json = with_texts;  // DeepSeek-V3's template adds the arguments to a string
    return render();
  }
}

}  // namespace sluice::capi
