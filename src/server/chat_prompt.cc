// SPDX-License-Identifier: Apache-2.0
#include "server/chat_prompt.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "io/quote.h"
#include "server/api_error.h"
#include "server/messages.h"

namespace sluice::server {

using io::JsonValue;

namespace {
// What a request may not say to a template: the rest of the request says it, or the checkpoint.
constexpr std::array<std::string_view, 9> kReserved{"messages",  "tools",     "documents", "add_generation_prompt",
                                                    "bos_token", "eos_token", "pad_token", "chat_template",
                                                    "tokenize"};

// OpenAI's words, and those that vLLM and Anthropic have beyond them.
constexpr std::array<std::string_view, 7> kEfforts{"none", "minimal", "low", "medium", "high", "xhigh", "max"};

text::jinja::Fields read_kwargs(Fields& fields, const ServedModel& model) {
  text::jinja::Fields extra;
  const JsonValue* kwargs = fields.find("chat_template_kwargs");
  if (kwargs == nullptr) return extra;
  const auto* object = kwargs->as<JsonValue::Object>();
  if (object == nullptr) fields.refuse_type("chat_template_kwargs", *kwargs, "an object");
  for (const io::JsonMember& m : *object) {
    if (std::find(kReserved.begin(), kReserved.end(), m.key) != kReserved.end())
      fields.refuse("chat_template_kwargs", fmt::format("has {}, which a request cannot choose", io::quote(m.key)));
    extra.emplace_back(m.key, to_template_value(m.value, model));
  }
  return extra;
}

// How much a model is to think, for templates that have a word for it; others know at most whether it is to think at
// all, under one of two names. What the request says to the template itself comes first.
void add_effort(Fields& fields, text::jinja::Fields& extra) {
  const std::optional<std::string> effort = fields.string("reasoning_effort");
  if (!effort) return;
  check_effort(fields, "reasoning_effort", *effort);
  const auto add = [&](const char* name, text::jinja::Value value) {
    const auto same = [&](const auto& field) { return field.first == name; };
    if (std::none_of(extra.begin(), extra.end(), same)) extra.emplace_back(name, std::move(value));
  };
  add("reasoning_effort", *effort);
  add("enable_thinking", *effort != "none");  // Qwen3's, GLM's, Nemotron's
  add("thinking", *effort != "none");         // DeepSeek-V3.1's
}

// Whether a template asks if a message has content at all, as DeepSeek-V3's does to find calls. Others print None.
bool tells_missing_content(std::string_view text) {
  for (const char* words : {"content'] is none", "content\"] is none", ".content is none"})
    if (text.find(words) != text.npos) return true;
  return false;
}

// The rendered text up to the end of the last message's content: what follows it would end the message. As in
// transformers, a template that trims the content (the space after the mark shows it) trims the prompt's end too.
void cut_at_mark(Fields& fields, std::string& text) {
  const size_t mark = text.rfind(kContinueMark);
  if (mark == text.npos)
    fields.refuse("continue_final_message", "is true, but the chat template does not show the last message's content");
  const bool trimmed = text.compare(mark + kContinueMark.size(), 1, " ") != 0;
  text.resize(mark);
  if (trimmed) text.resize(text.find_last_not_of(" \t\r\n") + 1);
}
}  // namespace

void check_effort(const Fields& fields, std::string_view key, const std::string& effort) {
  if (std::find(kEfforts.begin(), kEfforts.end(), effort) == kEfforts.end())
    fields.refuse(key, fmt::format("is {}; accepted: {}", io::quote(effort), fmt::join(kEfforts, ", ")));
}

ChatPrompt render_chat(Fields& fields, const ServedModel& model, ToolRequest tools) {
  const auto opens = fields.boolean("add_generation_prompt");
  const bool continues = fields.boolean("continue_final_message").value_or(false);
  if (continues && opens.value_or(false))
    fields.refuse("continue_final_message", "and add_generation_prompt are both true; accepted: one of them");
  ChatPrompt out;
  out.tools = std::move(tools);
  MessageForm form;
  form.continued = continues;
  form.null_content = tells_missing_content(model.chat_template_text());
  Messages messages = read_messages(fields, model, form);
  text::ChatOptions options;
  options.messages = std::move(messages.list);
  options.tools = out.tools.for_template;
  options.add_generation_prompt = opens.value_or(!continues);
  options.extra = read_kwargs(fields, model);
  add_effort(fields, options.extra);
  options.bos_token = model.tokenizer.bos_token();
  options.eos_token = model.tokenizer.eos_token();
  options.pad_token = model.tokenizer.pad_token();
  options.now = text::local_time();
  options.limits.steps = 50'000'000;  // a prompt of megabytes; about a second
  const auto render = [&] { out.text = model.chat_template().render(options); };
  try {
    try {
      render();
    } catch (const Error&) {
      if (!messages.has_arguments) throw;
      // transformers hands a call's arguments over as an object; DeepSeek-V3's template adds them to a string.
      form.arguments_as_text = true;
      options.messages = read_messages(fields, model, form).list;
      render();
    }
  } catch (const Error& error) {
    refuse("messages", fmt::format("messages: {}", error.what()));
  }
  if (continues) {
    cut_at_mark(fields, out.text);
    out.continued = std::move(messages.last_content);
  }
  return out;
}

}  // namespace sluice::server
