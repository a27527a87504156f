// SPDX-License-Identifier: Apache-2.0
// What OpenAI's two forms of a request share beside the parameters of the answer.
#pragma once

#include <string>

#include "server/fields.h"
#include "server/params.h"
#include "server/served_model.h"

namespace sluice::server {

// Throws ApiError 404 for a model that is not served here. Requests without "model" mean the one that is.
void check_model_name(Fields& fields, const ServedModel& model);

// The client's own name for the request, for /abort_request; `otherwise` when it gives none.
std::string read_rid(Fields& fields, const std::string& otherwise);

struct StreamOptions {
  bool stream = false;
  bool usage = false;  // a last chunk says how many tokens there were
};
StreamOptions read_stream_options(Fields& fields);

// Every other field that OpenAI or SGLang define: metadata is passed over, what would change the answer and is not
// implemented is refused. Never ignored: a client that asked for JSON must not be handed prose.
void refuse_what_is_not_there(Fields& fields);

}  // namespace sluice::server
