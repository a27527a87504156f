// SPDX-License-Identifier: Apache-2.0
#include "server/anthropic_request.h"

#include "io/json_text.h"
#include "io/quote.h"
#include "server/api_error.h"
#include "server/chat_job.h"

namespace sluice::server {

using io::JsonValue;

namespace {
// `content` is a string or an array of blocks. Calls `block` for each block with its fields, type and path.
template <class F>
void for_each_block(const JsonValue& content, const std::string& path, const F& block) {
  const auto* blocks = content.as<JsonValue::Array>();
  if (blocks == nullptr)
    refuse(path, fmt::format("{} is {}; accepted: a string or an array of blocks", path, io::describe(content)));
  for (size_t i = 0; i < blocks->size(); ++i) {
    const std::string name = fmt::format("{}[{}]", path, i);
    if ((*blocks)[i].as<JsonValue::Object>() == nullptr)
      refuse(name, fmt::format("{} is {}; accepted: an object with a type", name, io::describe((*blocks)[i])));
    Fields fields((*blocks)[i], name + ".");
    const std::string type = fields.string("type").value_or("");
    block(fields, type, name);
  }
}

[[noreturn]] void refuse_block(Fields& fields, const std::string& type, const char* accepted) {
  fields.refuse("type", fmt::format("is {}; accepted: {}", io::quote(type), accepted), "unsupported");
}

// The text of content that may hold nothing else: the system prompt, a tool's result.
std::string text_of(const JsonValue& content, const std::string& path) {
  if (const auto* s = content.as<std::string>()) return *s;
  std::string out;
  for_each_block(content, path, [&](Fields& fields, const std::string& type, const std::string&) {
    if (type != "text") refuse_block(fields, type, "text, this model reads nothing else");
    out += required_string(fields, "text");
  });
  return out;
}

void read_user_message(const JsonValue& content, const std::string& path, JsonValue::Array& out) {
  // It would become no message at all, and the chat another one.
  if (const auto* blocks = content.as<JsonValue::Array>(); blocks != nullptr && blocks->empty())
    refuse(path,
           fmt::format("{} is {}; accepted: a string or an array of at least one block", path, io::describe(content)));
  std::string text;
  bool said = false;
  const auto flush = [&] {
    if (said) out.push_back(chat_message("user", std::exchange(text, {})));
    said = false;
  };
  for_each_block(content, path, [&](Fields& fields, const std::string& type, const std::string& name) {
    if (type == "text") {
      text += required_string(fields, "text");
      said = true;
    } else if (type == "tool_result") {
      flush();  // results keep their place among the messages
      const JsonValue* result = fields.find("content");
      std::string said_back = result == nullptr ? "" : text_of(*result, name + ".content");
      // Templates cannot mark an error. The model reads of it in the text, so an error without text gets one.
      if (fields.boolean("is_error").value_or(false) && said_back.empty()) said_back = "Error";
      JsonValue tool = chat_message("tool", std::move(said_back));
      std::get<JsonValue::Object>(tool.value)
          .push_back(text_member("tool_call_id", required_string(fields, "tool_use_id")));
      out.push_back(std::move(tool));
    } else {
      refuse_block(fields, type, "text, tool_result; this model reads nothing else");
    }
  });
  flush();
}

// Returns whether the message ends with calls.
bool read_assistant_message(const JsonValue& content, const std::string& path, JsonValue::Array& out) {
  std::string text, thought;
  JsonValue::Array calls;
  for_each_block(content, path, [&](Fields& fields, const std::string& type, const std::string&) {
    if (type == "text") {
      text += required_string(fields, "text");
    } else if (type == "thinking") {
      thought += required_string(fields, "thinking");
    } else if (type == "tool_use") {
      const JsonValue* input = fields.find("input");
      JsonValue function{
          JsonValue::Object{text_member("name", required_string(fields, "name")),
                            text_member("arguments", input == nullptr ? "{}" : io::to_json_line(*input))}};
      calls.push_back({JsonValue::Object{text_member("id", required_string(fields, "id")),
                                         text_member("type", "function"),
                                         {"function", std::move(function)}}});
    } else if (type != "redacted_thinking") {  // encrypted by another server: skipped
      refuse_block(fields, type, "text, thinking, tool_use");
    }
  });
  JsonValue all = chat_message("assistant", std::move(text));
  auto& members = std::get<JsonValue::Object>(all.value);
  if (!thought.empty()) members.push_back(text_member("reasoning_content", std::move(thought)));
  const bool has_calls = !calls.empty();
  if (has_calls) members.push_back({"tool_calls", {std::move(calls)}});
  out.push_back(std::move(all));
  return has_calls;
}

enum class Last : uint8_t { user, assistant, calls };

Last read_message(const JsonValue& json, const std::string& path, JsonValue::Array& out) {
  if (json.as<JsonValue::Object>() == nullptr)
    refuse(path, fmt::format("{} is {}; accepted: an object with role and content", path, io::describe(json)));
  Fields fields(json, path + ".");
  const std::string role = fields.string("role").value_or("");
  if (role != "user" && role != "assistant")
    fields.refuse("role", fmt::format("is {}; accepted: user, assistant", io::quote(role)));
  const JsonValue* content = fields.find("content");
  if (content == nullptr) fields.refuse("content", "is missing; accepted: a string or an array of blocks");
  if (const auto* s = content->as<std::string>()) {
    out.push_back(chat_message(role, *s));
  } else if (role == "user") {
    read_user_message(*content, path + ".content", out);
  } else if (read_assistant_message(*content, path + ".content", out)) {
    return Last::calls;
  }
  return role == "user" ? Last::user : Last::assistant;
}

// {"type": "enabled" | "adaptive" | "disabled"}, as templates name it.
void read_thinking(Fields& fields, JsonValue::Object& kwargs) {
  const JsonValue* thinking = fields.find("thinking");
  if (thinking == nullptr) return;
  if (thinking->as<JsonValue::Object>() == nullptr) fields.refuse_type("thinking", *thinking, "an object with a type");
  Fields inner(*thinking, "thinking.");
  const std::string type = inner.string("type").value_or("");
  if (type != "enabled" && type != "disabled" && type != "adaptive")
    inner.refuse("type", fmt::format("is {}; accepted: enabled, adaptive, disabled", io::quote(type)));
  // Accepted without effect: no template takes a number of tokens for thoughts.
  inner.integer("budget_tokens", 0, std::numeric_limits<int64_t>::max());
  kwargs.push_back({"enable_thinking", {type != "disabled"}});
}

// "output_config": {"effort"}, which says how much a model thinks, not whether it does.
void read_effort(Fields& fields, JsonValue::Object& kwargs) {
  const JsonValue* config = fields.find("output_config");
  if (config == nullptr || config->as<JsonValue::Object>() == nullptr) return;  // which its other reader refuses
  Fields inner(*config, "output_config.");
  const auto effort = inner.string("effort");
  if (!effort) return;
  check_effort(inner, "effort", *effort);
  kwargs.push_back(text_member("reasoning_effort", *effort));
}
}  // namespace

JsonValue read_anthropic_chat(Fields& fields) {
  JsonValue::Object chat;
  JsonValue::Array messages;
  if (const JsonValue* system = fields.find("system"))
    messages.push_back(chat_message("system", text_of(*system, "system")));
  const JsonValue* given = fields.find("messages");
  const auto* array = given == nullptr ? nullptr : given->as<JsonValue::Array>();
  if (array == nullptr || array->empty())
    fields.refuse("messages", fmt::format("is {}; accepted: an array of at least one message",
                                          given == nullptr ? "missing" : io::describe(*given)));
  Last last = Last::user;
  std::string path;
  for (size_t i = 0; i < array->size(); ++i) {
    path = fmt::format("messages[{}]", i);
    last = read_message((*array)[i], path, messages);
  }
  if (last == Last::calls)
    refuse(path + ".content", fmt::format("{}.content has tool_use, and is the last message; accepted: with a message "
                                          "of the user after it that has the tool_result",
                                          path));
  JsonValue::Object kwargs;
  read_thinking(fields, kwargs);
  read_effort(fields, kwargs);
  if (!kwargs.empty()) chat.push_back({"chat_template_kwargs", {std::move(kwargs)}});
  chat.push_back({"messages", {std::move(messages)}});
  if (last == Last::assistant) chat.push_back({"continue_final_message", {true}});
  return {std::move(chat)};
}

}  // namespace sluice::server
