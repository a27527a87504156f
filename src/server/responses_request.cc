// SPDX-License-Identifier: Apache-2.0
#include "server/responses_request.h"

#include "io/quote.h"
#include "server/api_error.h"
#include "server/chat_job.h"

namespace sluice::server {

using io::JsonValue;

namespace {
// A string, or parts of which each has a text.
std::string text_of(const JsonValue& content, const std::string& path) {
  if (const auto* s = content.as<std::string>()) return *s;
  const auto* parts = content.as<JsonValue::Array>();
  if (parts == nullptr)
    refuse(path, fmt::format("{} is {}; accepted: a string or an array of parts", path, io::describe(content)));
  std::string out;
  for (size_t i = 0; i < parts->size(); ++i) {
    const std::string name = fmt::format("{}[{}]", path, i);
    if ((*parts)[i].as<JsonValue::Object>() == nullptr)
      refuse(name, fmt::format("{} is {}; accepted: an object with type and text", name, io::describe((*parts)[i])));
    Fields part((*parts)[i], name + ".");
    const std::string type = part.string("type").value_or("");
    if (type != "input_text" && type != "output_text" && type != "text" && type != "refusal" &&
        type != "reasoning_text" && type != "summary_text")
      part.refuse(
          "type",
          fmt::format("is {}; accepted: input_text, output_text, this model reads nothing else", io::quote(type)),
          "unsupported");
    out += required_string(part, type == "refusal" ? "refusal" : "text");
  }
  return out;
}

// The thought, the text and the calls of a turn of the assistant form one message, as templates expect.
class Conversation {
 public:
  void say(const std::string& role, std::string text) {
    if (role != "assistant") end_turn();
    if (role != "assistant") return messages_.push_back(chat_message(role, std::move(text))), void();
    if (spoken_ || !calls_.empty()) end_turn();
    text_ = std::move(text);
    spoken_ = true;
  }
  void think(const std::string& text) {
    if (spoken_ || !calls_.empty()) end_turn();
    thought_ += text;
  }
  void call(std::string id, std::string name, std::string arguments) {
    JsonValue function{
        JsonValue::Object{text_member("name", std::move(name)), text_member("arguments", std::move(arguments))}};
    calls_.push_back({JsonValue::Object{
        text_member("id", std::move(id)), text_member("type", "function"), {"function", std::move(function)}}});
  }
  void result(std::string id, std::string text) {
    end_turn();
    JsonValue tool = chat_message("tool", std::move(text));
    std::get<JsonValue::Object>(tool.value).push_back(text_member("tool_call_id", std::move(id)));
    messages_.push_back(std::move(tool));
  }
  JsonValue::Array take() {
    end_turn();
    return std::move(messages_);
  }

 private:
  void end_turn() {
    if (spoken_ || !calls_.empty()) {
      JsonValue all = chat_message("assistant", std::exchange(text_, {}));
      auto& members = std::get<JsonValue::Object>(all.value);
      if (!thought_.empty()) members.push_back(text_member("reasoning_content", thought_));
      if (!calls_.empty()) members.push_back({"tool_calls", {std::exchange(calls_, {})}});
      messages_.push_back(std::move(all));
    }
    thought_.clear();  // one that no text or call follows is dropped
    spoken_ = false;
  }

  JsonValue::Array messages_, calls_;
  std::string text_, thought_;
  bool spoken_ = false;
};

void read_item(const JsonValue& json, const std::string& path, Conversation& out) {
  if (json.as<JsonValue::Object>() == nullptr)
    refuse(path, fmt::format("{} is {}; accepted: an object with role and content", path, io::describe(json)));
  Fields fields(json, path + ".");
  const std::string type = fields.string("type").value_or("message");
  const auto content = [&](std::string_view key) {
    const JsonValue* value = fields.find(key);
    if (value == nullptr) fields.refuse(key, "is missing; accepted: a string or an array of parts");
    return text_of(*value, path + "." + std::string(key));
  };
  if (type == "message") {
    std::string role = fields.string("role").value_or("");
    if (role != "user" && role != "assistant" && role != "system" && role != "developer")
      fields.refuse("role", fmt::format("is {}; accepted: user, assistant, system, developer", io::quote(role)));
    if (role == "developer") role = "system";
    out.say(role, content("content"));
  } else if (type == "function_call") {
    std::string id = required_string(fields, "call_id"), name = required_string(fields, "name");
    out.call(std::move(id), std::move(name), required_string(fields, "arguments"));
  } else if (type == "function_call_output") {
    std::string id = required_string(fields, "call_id");
    out.result(std::move(id), content("output"));
  } else if (type == "reasoning") {
    if (fields.has("content")) out.think(content("content"));  // a summary alone is not what was thought
  } else {
    fields.refuse(
        "type",
        fmt::format("is {}; accepted: message, function_call, function_call_output, reasoning", io::quote(type)),
        "unsupported");
  }
}
}  // namespace

JsonValue read_responses_chat(Fields& fields) {
  Conversation out;
  if (const auto instructions = fields.string("instructions")) out.say("system", *instructions);
  const JsonValue* input = fields.find("input");
  if (input == nullptr) fields.refuse("input", "is missing; accepted: a string or an array of items");
  if (const auto* text = input->as<std::string>()) {
    out.say("user", *text);
  } else {
    const auto* items = input->as<JsonValue::Array>();
    if (items == nullptr || items->empty())
      fields.refuse_type("input", *input, "a string or an array of at least one item");
    for (size_t i = 0; i < items->size(); ++i) read_item((*items)[i], fmt::format("input[{}]", i), out);
  }
  JsonValue::Array messages = out.take();
  if (messages.empty())
    fields.refuse("input", "has thoughts alone; accepted: at least one item that is a message, a call or its output");
  JsonValue::Object chat{{"messages", {std::move(messages)}}};
  if (const JsonValue* kwargs = fields.find("chat_template_kwargs")) chat.push_back({"chat_template_kwargs", *kwargs});
  return {std::move(chat)};
}

}  // namespace sluice::server
