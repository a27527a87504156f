// SPDX-License-Identifier: Apache-2.0
// The input of OpenAI's Responses API -> messages of its chat.
#pragma once

#include "server/fields.h"

namespace sluice::server {

// Reads "instructions", "input" and "chat_template_kwargs" into a chat as render_translated() takes it. Throws ApiError
// 400 naming the request's own field for what is not text, a call of a function or its output.
io::JsonValue read_responses_chat(Fields& fields);

}  // namespace sluice::server
