// SPDX-License-Identifier: Apache-2.0
// A model's chat template: messages in, the prompt's text out, as transformers' apply_chat_template writes it.
#pragma once

#include <array>
#include <ctime>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "text/jinja/interpreter.h"

namespace sluice::text {

struct ChatOptions {
  jinja::Value messages;  // list of dict: role, content, tool_calls, ...
  jinja::Value tools;     // list of dict, or left undefined
  bool add_generation_prompt = true;
  std::string bos_token, eos_token, pad_token;  // empty: the template sees no such variable
  jinja::Fields extra;                          // further variables, e.g. enable_thinking; they win over those above
  std::optional<std::tm> now;                   // for strftime_now; without it a template that asks for the date fails
  jinja::Limits limits;
};

std::tm local_time();  // for ChatOptions::now

// The roles that a message may have: OpenAI's.
inline constexpr std::array<std::string_view, 5> kChatRoles{"system", "developer", "user", "assistant", "tool"};
bool is_chat_role(std::string_view role);

class ChatTemplate {
 public:
  // `source` names the file in sentences. Throws bad_file for what is not Jinja, unsupported for a construct that is
  // not implemented; both name the line.
  ChatTemplate(std::string_view text, std::string_view source);
  ~ChatTemplate();
  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;

  // Throws invalid_argument when the template refuses the messages, fails on them or passes a limit. Any number of
  // threads.
  std::string render(const ChatOptions& options) const;

 private:
  std::string source_;
  jinja::NodePtr root_;
};

}  // namespace sluice::text
