// SPDX-License-Identifier: Apache-2.0
// The list of formats. Adding one is a file and a line here.
#pragma once

#include <string_view>
#include <vector>

#include "server/tool_calls/call_format.h"

namespace sluice::server {

// A chat template is of the first format in this order whose markers it holds.
const std::vector<CallFormat>& tool_call_formats();

// nullptr: no format has that name.
const CallFormat* tool_call_format(std::string_view name);
// The one that the template's text shows the model; nullptr: none.
const CallFormat* tool_call_format_of(std::string_view chat_template);

}  // namespace sluice::server
