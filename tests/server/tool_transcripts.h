// SPDX-License-Identifier: Apache-2.0
// Answers with calls of tools, as the models' chat templates write them.
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "server/tool_calls/tool_call_parser.h"

namespace sluice::server {

const Tools& transcript_tools();

// Of the parts of an answer: contents as they are, calls as <<name arguments>>, with what the format says of the id.
struct Parsed {
  std::string content, calls;
  size_t count = 0;
  bool operator==(const Parsed&) const = default;
};
void PrintTo(const Parsed& p, std::ostream* out);

// Ids that the format does not have are "new".
Parsed parse(const CallFormat& format, const Tools& tools, const std::vector<std::string_view>& pieces,
             ToolCallParser::Options options = {});

// Whole, in two parts at every byte, and byte by byte.
void expect_everywhere(const CallFormat& format, const Tools& tools, const std::string& text, const Parsed& expected,
                       const ToolCallParser::Options& options = {});

struct Transcript {
  const char* format;
  std::string text, content, calls;
};
std::vector<Transcript> transcripts();

// `text` with DeepSeek's characters for the bars and gaps of its tags.
std::string deepseek(std::string text);

}  // namespace sluice::server
