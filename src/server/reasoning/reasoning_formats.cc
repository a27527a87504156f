// SPDX-License-Identifier: Apache-2.0
#include "server/reasoning/reasoning_format.h"

#include "server/format_of.h"

namespace sluice::server {

const std::vector<ReasoningFormat>& reasoning_formats() {
  static const std::vector<ReasoningFormat> all{harmony_format(), think_format(), deepseek_r1_format()};
  return all;
}

const ReasoningFormat* reasoning_format(std::string_view name) { return format_of_name(reasoning_formats(), name); }

const ReasoningFormat* reasoning_format_of(std::string_view chat_template) {
  return format_of_template(reasoning_formats(), chat_template);
}

void SplitText::add(const std::vector<ReasoningPart>& parts) {
  for (const ReasoningPart& part : parts) (part.thought ? reasoning : content) += part.text;
}

void add_part(std::vector<ReasoningPart>& parts, std::string_view text, bool thought) {
  if (text.empty()) return;
  if (parts.empty() || parts.back().thought != thought) parts.push_back({"", thought});
  parts.back().text += text;
}

}  // namespace sluice::server
