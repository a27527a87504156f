// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "server/reasoning/reasoning_format.h"

namespace sluice::server {

const std::vector<ReasoningFormat>& reasoning_formats() {
  static const std::vector<ReasoningFormat> all{harmony_format(), think_format(), deepseek_r1_format()};
  return all;
}

const ReasoningFormat* reasoning_format(std::string_view name) {
  for (const ReasoningFormat& f : reasoning_formats())
    if (std::find(f.names.begin(), f.names.end(), name) != f.names.end()) return &f;
  return nullptr;
}

const ReasoningFormat* reasoning_format_of(std::string_view chat_template) {
  for (const ReasoningFormat& f : reasoning_formats())
    if (std::all_of(f.markers.begin(), f.markers.end(),
                    [&](std::string_view marker) { return chat_template.find(marker) != chat_template.npos; }))
      return &f;
  return nullptr;
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
