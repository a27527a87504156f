// SPDX-License-Identifier: Apache-2.0
#include "server/tool_calls/tool_call_formats.h"

#include <algorithm>

#include "server/tool_calls/formats.h"

namespace sluice::server {

const std::vector<CallFormat>& tool_call_formats() {
  // Hermes is the last of those with <tool_call>: its tags alone tell nothing from the two others.
  static const std::vector<CallFormat> all{
      gpt_oss_format(),  kimi_k2_format(),     deepseek_v3_format(), deepseek_v31_format(),
      nemotron_format(), qwen3_coder_format(), glm45_format(),       hermes_format(),
  };
  return all;
}

const CallFormat* tool_call_format(std::string_view name) {
  for (const CallFormat& f : tool_call_formats())
    if (std::find(f.names.begin(), f.names.end(), name) != f.names.end()) return &f;
  return nullptr;
}

const CallFormat* tool_call_format_of(std::string_view chat_template) {
  for (const CallFormat& f : tool_call_formats())
    if (std::all_of(f.markers.begin(), f.markers.end(),
                    [&](std::string_view marker) { return chat_template.find(marker) != chat_template.npos; }))
      return &f;
  return nullptr;
}

}  // namespace sluice::server
