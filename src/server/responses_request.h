// SPDX-License-Identifier: Apache-2.0
// The input of OpenAI's Responses API -> messages of its chat.
#pragma once

#include "server/fields.h"

namespace sluice::server {

// Reads "instructions" and "input" into {"messages"}. Throws ApiError 400 naming the request's own field for what is
// not text, a call of a function or its output.
io::JsonValue read_responses_chat(Fields& fields);

}  // namespace sluice::server
