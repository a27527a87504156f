// SPDX-License-Identifier: Apache-2.0
#include "text/chat_template.h"

#include <algorithm>

#include "base/error.h"
#include "text/jinja/parser.h"

namespace sluice::text {
namespace {

// The interpreter's sentences name lines only; the file is added here.
template <class F>
auto naming(const std::string& source, F&& f) {
  try {
    return f();
  } catch (const Error& e) {
    throw Error(e.code(), source + ": " + e.what());
  }
}

}  // namespace

std::tm local_time() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  return *localtime_r(&now, &local);
}

bool is_chat_role(std::string_view role) {
  return std::find(kChatRoles.begin(), kChatRoles.end(), role) != kChatRoles.end();
}

ChatTemplate::ChatTemplate(std::string_view text, std::string_view source)
    : source_(source), root_(naming(source_, [&] { return jinja::parse(text); })) {}
ChatTemplate::~ChatTemplate() = default;
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;

std::string ChatTemplate::render(const ChatOptions& options) const {
  jinja::Fields variables{{"messages", options.messages},
                          {"add_generation_prompt", options.add_generation_prompt},
                          // transformers passes None for what the caller left out.
                          {"tools", options.tools.is(jinja::Value::Kind::undefined) ? nullptr : options.tools},
                          {"documents", nullptr}};
  if (!options.bos_token.empty()) variables.emplace_back("bos_token", options.bos_token);
  if (!options.eos_token.empty()) variables.emplace_back("eos_token", options.eos_token);
  if (!options.pad_token.empty()) variables.emplace_back("pad_token", options.pad_token);
  variables.insert(variables.begin(), options.extra.begin(), options.extra.end());
  return naming(source_, [&] { return jinja::Interpreter(variables, options.limits, options.now).render(*root_); });
}

}  // namespace sluice::text
