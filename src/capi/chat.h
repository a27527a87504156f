// SPDX-License-Identifier: Apache-2.0
// A chat -> the tokens of its prompt, by the checkpoint's chat template.
#pragma once

#include <cstdint>
#include <vector>

#include "text/special_guard.h"
#include "text/tokenizer.h"

namespace sluice::capi {

// messages: a JSON array; variables: a JSON object of the template's variables, or nullptr. A message without content,
// content that is not text, and tools or calls that the template would leave out are refused, and arguments of calls
// are objects for the template, as in the server's endpoints (server/messages.h). Throws invalid_argument or
// unsupported.
std::vector<int32_t> encode_chat(const text::Tokenizer& tokenizer, const text::SpecialGuard& special,
                                 const char* messages, const char* variables, bool generation_prompt);

}  // namespace sluice::capi
