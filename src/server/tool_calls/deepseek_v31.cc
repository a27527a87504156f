// SPDX-License-Identifier: Apache-2.0
// DeepSeek-V3.1, with V3's tags:
//   <|tool calls begin|><|tool call begin|>get_weather<|tool sep|>{"city": "Paris"}<|tool call end|><|tool calls end|>
#include <fmt/format.h>

#include "server/tool_calls/deepseek_tags.h"
#include "server/tool_calls/formats.h"
#include "server/tool_calls/tagged_json.h"

namespace sluice::server {

CallFormat deepseek_v31_format() {
  CallFormat f;
  f.names = {"deepseekv31", "deepseek_v31"};
  f.markers = {deepseek::kCall};
  f.begins = {deepseek::kCall};
  f.open = deepseek::kCalls;
  f.close = deepseek::kCallsEnd;
  f.separator = "";
  f.trigger = f.open;
  f.inner = {deepseek::kSeparator, deepseek::kCallEnd};
  f.reader = [](const Tools&, bool) -> std::unique_ptr<CallReader> {
    const auto header = [](std::string_view text, ToolCall& call) {
      call.name = trimmed(text);
      return true;
    };
    return std::make_unique<TaggedJsonReader>(
        TaggedJson{deepseek::kCall.size(), deepseek::kSeparator, "", {deepseek::kCallEnd}, header});
  };
  f.written = [](std::string_view name) {
    return CallTemplate{fmt::format("{}{}{}", deepseek::kCall, name, deepseek::kSeparator),
                        std::string(deepseek::kCallEnd)};
  };
  return f;
}

}  // namespace sluice::server
