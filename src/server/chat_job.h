// SPDX-License-Identifier: Apache-2.0
// A chat on its way to the engine. The endpoint of another API translates the request to OpenAI's messages, and what
// follows is the same for all.
#pragma once

#include <optional>
#include <string_view>

#include "engine/request.h"
#include "io/json_value.h"
#include "server/answer_parser.h"
#include "server/chat_prompt.h"
#include "server/constraint.h"
#include "server/fields.h"
#include "server/service.h"

namespace sluice::server {

// How a chat is to be answered, beside the parameters of the answer.
struct ChatDemand {
  std::string_view field = "messages";          // what the request calls them
  std::string_view call_ids = "call_";          // what the ids of calls begin with
  bool separate_reasoning = true;               // thoughts come as reasoning_content, not in the text
  std::optional<GivenConstraint> constraint{};  // of the text
};

struct PreparedChat {
  engine::Request request;
  AnswerReading reading;  // of `prompt`, which it views
};

// `request` has everything but the prompt. Throws ApiError 400: it does not fit, or the constraint cannot be kept.
PreparedChat prepare_chat(const Service& service, const ServedModel& model, const engine::Limits& limits,
                          const ChatPrompt& prompt, engine::Request request, const ChatDemand& demand);

// `chat`: {"messages", "chat_template_kwargs", "reasoning_effort", "continue_final_message"} that another API's request
// was translated to. Errors name `field`.
ChatPrompt render_translated(const ServedModel& model, const io::JsonValue& chat, ToolRequest tools,
                             std::string_view field);

// The tokens of the prompt alone.
std::vector<int32_t> chat_prompt_ids(const ServedModel& model, const engine::Limits& limits, const ChatPrompt& prompt,
                                     std::string_view field);

// A member of an object whose value is text, for requests that are translated into OpenAI's form.
inline io::JsonMember text_member(std::string key, std::string text) {
  return {std::move(key), io::JsonValue{std::move(text)}};
}
// {"role": role, "content": content}
inline io::JsonValue chat_message(const std::string& role, std::string content) {
  return {io::JsonValue::Object{text_member("role", role), text_member("content", std::move(content))}};
}
// Throws ApiError 400 where the field is missing or not a string.
inline std::string required_string(Fields& fields, std::string_view key) {
  const auto text = fields.string(key);
  if (!text) fields.refuse(key, "is missing; accepted: a string");
  return *text;
}

}  // namespace sluice::server
