// SPDX-License-Identifier: Apache-2.0
// Any bytes as a chat template: it renders within its limits or is refused by a sentence.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "text/chat_template.h"
#include "text/utf8.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using sluice::text::jinja::Value;
  static const Value messages = Value::list({
      Value::dict({{"role", "system"}, {"content", "Be brief."}}),
      Value::dict({{"role", "user"}, {"content", " <think>\xC3\xA9\n</think> hi "}}),
      Value::dict(
          {{"role", "assistant"}, {"content", nullptr}, {"tool_calls", Value::list({Value::dict({{"n", 1.5}})})}}),
  });
  sluice::text::ChatOptions options;
  options.messages = messages;
  options.tools = messages;
  options.limits = {.steps = 20'000, .depth = 300, .output_bytes = 10'000};
  options.now.emplace();
  options.now->tm_mday = 1;
  try {
    const sluice::text::ChatTemplate t({reinterpret_cast<const char*>(data), size}, "template");
    const std::string text = t.render(options);
    if (text.size() > options.limits.output_bytes || sluice::text::to_valid_utf8(text) != text) std::abort();
  } catch (const sluice::Error&) {
  }
  return 0;
}
