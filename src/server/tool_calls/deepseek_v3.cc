// SPDX-License-Identifier: Apache-2.0
// DeepSeek-R1 and V3, whose tags have U+FF5C for the bar and U+2581 for the gap between two words:
//   <|tool calls begin|><|tool call begin|>function<|tool sep|>get_weather
//   ```json
//   {"city": "Paris"}
//   ```<|tool call end|><|tool calls end|>
#include <fmt/format.h>

#include "server/tool_calls/deepseek_tags.h"
#include "server/tool_calls/formats.h"
#include "server/tool_calls/tagged_json.h"

namespace sluice::server {

namespace {
constexpr std::string_view kFence = "```json";

bool header(std::string_view text, ToolCall& call) {
  const size_t separator = text.find(deepseek::kSeparator);
  if (separator == text.npos || trimmed(text.substr(0, separator)) != "function") return false;
  call.name = trimmed(text.substr(separator + deepseek::kSeparator.size()));
  return true;
}
}  // namespace

CallFormat deepseek_v3_format() {
  CallFormat f;
  f.names = {"deepseekv3", "deepseek_v3"};
  f.markers = {deepseek::kCall, kFence};
  f.begins = {deepseek::kCall};
  f.open = deepseek::kCalls;
  f.close = deepseek::kCallsEnd;
  f.separator = "\n";
  f.trigger = f.open;
  f.inner = {deepseek::kSeparator, deepseek::kCallEnd};
  f.reader = [](const Tools&, bool) -> std::unique_ptr<CallReader> {
    return std::make_unique<TaggedJsonReader>(
        TaggedJson{deepseek::kCall.size(), kFence, "```", {deepseek::kCallEnd}, header});
  };
  f.written = [](std::string_view name) {
    return CallTemplate{fmt::format("{}function{}{}\n{}\n", deepseek::kCall, deepseek::kSeparator, name, kFence),
                        fmt::format("\n```{}", deepseek::kCallEnd)};
  };
  return f;
}

}  // namespace sluice::server
