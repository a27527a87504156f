// SPDX-License-Identifier: Apache-2.0
// Why a field that OpenAI, Anthropic, SGLang or vLLM have is refused. docs/compatibility.md has a row for each.
#pragma once

#include <string_view>

namespace sluice::server {

// A clause for the sentence of the refusal. Empty: none is listed, so no server that is known here has the field.
std::string_view refusal_reason(std::string_view field);

}  // namespace sluice::server
