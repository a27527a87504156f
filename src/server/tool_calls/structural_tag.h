// SPDX-License-Identifier: Apache-2.0
// What a constraint must say so that an answer's calls are whole: xgrammar's structural tag for a format and its tools.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "server/tool_calls/call_format.h"

namespace sluice::server {

struct CallDemand {
  bool required = false;  // the answer is one call or several, and no other text; else calls may come between texts
  bool parallel = true;   // more than one call
  std::string otherwise;  // a format of structural tags: what an answer is that is no call, if it may be none; "": any
};

// The format's tags, which may be control tokens. Answers show these.
std::vector<std::string> call_tags(const CallFormat& format);

// The JSON text of the structural tag, for the answer's text after its thoughts. `tools`:
// those that may be called; at least one. Arguments follow a tool's schema if they are required or the tool is strict,
// else they are any object.
std::string structural_tag(const CallFormat& format, std::span<const Tool> tools, const CallDemand& demand);

}  // namespace sluice::server
