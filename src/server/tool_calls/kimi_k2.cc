// SPDX-License-Identifier: Apache-2.0
// Kimi-K2, in one line:
//   <|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{"city": "Paris"}
//   <|tool_call_end|><|tool_calls_section_end|>
// The text before the arguments is the call's id, and the model expects it back with the result.
#include <fmt/format.h>

#include "server/tool_calls/formats.h"
#include "server/tool_calls/tagged_json.h"

namespace sluice::server {

namespace {
constexpr std::string_view kCall = "<|tool_call_begin|>", kCallEnd = "<|tool_call_end|>",
                           kArguments = "<|tool_call_argument_begin|>", kPrefix = "functions.";

bool header(std::string_view text, ToolCall& call) {
  text = trimmed(text);
  const size_t colon = text.rfind(':');
  if (colon == text.npos || colon + 1 == text.size()) return false;
  if (text.find_first_not_of("0123456789", colon + 1) != text.npos) return false;
  call.id = text;
  text = text.substr(0, colon);
  if (text.starts_with(kPrefix)) text.remove_prefix(kPrefix.size());
  call.name = text;
  return true;
}
}  // namespace

CallFormat kimi_k2_format() {
  CallFormat f;
  f.names = {"kimi_k2"};
  f.markers = {kCall};
  f.begins = {kCall};
  f.open = "<|tool_calls_section_begin|>";
  f.close = "<|tool_calls_section_end|>";
  f.separator = "";
  f.trigger = f.open;
  f.inner = {kCallEnd, kArguments};
  f.reader = [](const Tools&, bool) -> std::unique_ptr<CallReader> {
    return std::make_unique<TaggedJsonReader>(TaggedJson{kCall.size(), kArguments, "", {kCallEnd}, header});
  };
  // The number counts the calls of the conversation; a constraint leaves it to the model.
  f.written = [](std::string_view name) {
    return CallTemplate{fmt::format("{}{}{}:", kCall, kPrefix, name), std::string(kCallEnd), "json",
                        "[0-9]+<\\|tool_call_argument_begin\\|>"};
  };
  return f;
}

}  // namespace sluice::server
