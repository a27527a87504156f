// SPDX-License-Identifier: Apache-2.0
// OpenAI's messages -> the prompt, by the model's chat template.
#pragma once

#include <string>

#include "server/fields.h"
#include "server/served_model.h"

namespace sluice::server {

// Reads "messages" and "chat_template_kwargs". Throws ApiError 400 for what is no message, for content that is not
// text, and for messages that the template refuses. The text still holds ServedModel::guard()'s marks.
std::string render_chat(Fields& fields, const ServedModel& model);

}  // namespace sluice::server
