// SPDX-License-Identifier: Apache-2.0
// gpt-oss (Harmony), either of:
//   <|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{"city": "Paris"}<|call|>
//    to=functions.get_weather<|channel|>commentary json<|message|>{"city": "Paris"}<|call|>
// with <|start|>assistant before all messages but an answer's first, whose own is the prompt's end. The reasoning
// parser of the same name leaves messages to functions as they are.
#include <fmt/format.h>

#include "server/tool_calls/formats.h"
#include "server/tool_calls/tagged_json.h"

namespace sluice::server {

namespace {
constexpr std::string_view kStart = "<|start|>assistant", kChannel = "<|channel|>", kMessage = "<|message|>",
                           kTo = " to=functions.";

// Of these words only, and with one recipient: anything else in it would be lost.
bool header(std::string_view text, ToolCall& call) {
  bool has_channel = false;
  while (!text.empty()) {
    const auto takes = [&](std::string_view word) {
      if (!text.starts_with(word)) return false;
      text.remove_prefix(word.size());
      return true;
    };
    if (takes(kTo)) {
      if (!call.name.empty()) return false;
      call.name = text.substr(0, text.find_first_of(" <"));
      text.remove_prefix(call.name.size());
    } else if (takes(kChannel)) {
      has_channel = true;
    } else if (!takes(kStart) && !takes("commentary") && !takes("analysis") && !takes("<|constrain|>") &&
               !takes("json") && !takes(" ")) {
      return false;
    }
  }
  return has_channel;
}
}  // namespace

CallFormat gpt_oss_format() {
  CallFormat f;
  f.names = {"gpt-oss", "openai"};
  f.markers = {kChannel, kMessage};
  f.begins = {kStart, kChannel, kTo};
  f.between = kStart;
  f.trigger = "<|channel|>commentary to=functions.";
  f.inner = {"<|start|>", kMessage, "<|constrain|>", "<|call|>", "<|end|>"};
  f.reader = [](const Tools&, bool) -> std::unique_ptr<CallReader> {
    return std::make_unique<TaggedJsonReader>(TaggedJson{0, kMessage, "", {"<|call|>", "<|end|>"}, header});
  };
  f.written = [](std::string_view name) {
    return CallTemplate{fmt::format("{}commentary{}{} <|constrain|>json{}", kChannel, kTo, name, kMessage), "<|call|>"};
  };
  return f;
}

}  // namespace sluice::server
