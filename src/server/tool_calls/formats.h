// SPDX-License-Identifier: Apache-2.0
// The formats, each in the file of its name.
#pragma once

#include "server/tool_calls/call_format.h"

namespace sluice::server {

CallFormat hermes_format();
CallFormat qwen3_coder_format();
CallFormat deepseek_v3_format();
CallFormat deepseek_v31_format();
CallFormat nemotron_format();
CallFormat glm45_format();
CallFormat kimi_k2_format();
CallFormat gpt_oss_format();

}  // namespace sluice::server
