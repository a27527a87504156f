// SPDX-License-Identifier: Apache-2.0
// OpenAI's messages -> the prompt, by the model's chat template.
#pragma once

#include <string>

#include "server/fields.h"
#include "server/served_model.h"
#include "server/tools.h"

namespace sluice::server {

struct ChatPrompt {
  ToolRequest tools;
  std::string text;       // still holds ServedModel::guard()'s marks
  std::string continued;  // what the answer goes on with: the last message's content; "": a new message
};

// Throws ApiError 400 when `effort`, the value of `key`, is no degree of thinking that a request can ask for.
void check_effort(const Fields& fields, std::string_view key, const std::string& effort);

// Reads "messages", "chat_template_kwargs", "reasoning_effort", "add_generation_prompt" and "continue_final_message".
// Throws ApiError 400 for what is no message, for content that is not text, and for messages that the template refuses.
ChatPrompt render_chat(Fields& fields, const ServedModel& model, ToolRequest tools);

}  // namespace sluice::server
