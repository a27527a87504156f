// SPDX-License-Identifier: Apache-2.0
#include "server/tool_calls/tool_call_formats.h"

#include "server/format_of.h"
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

const CallFormat* tool_call_format(std::string_view name) { return format_of_name(tool_call_formats(), name); }

const CallFormat* tool_call_format_of(std::string_view chat_template) {
  return format_of_template(tool_call_formats(), chat_template);
}

}  // namespace sluice::server
