// SPDX-License-Identifier: Apache-2.0
// Anthropic's Messages -> OpenAI's.
#pragma once

#include "server/fields.h"

namespace sluice::server {

// Reads "system", "messages", "thinking" and the effort of "output_config" into {"messages", "chat_template_kwargs",
// "continue_final_message"}. A last message of the assistant is gone on with. Throws ApiError 400 naming the request's
// own field for what is not text, a thought, a call of a tool or its result.
io::JsonValue read_anthropic_chat(Fields& fields);

}  // namespace sluice::server
