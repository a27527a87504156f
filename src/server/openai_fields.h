// SPDX-License-Identifier: Apache-2.0
// What OpenAI's two forms of a request share beside the parameters of the answer.
#pragma once

#include <optional>
#include <string>

#include "server/answer.h"
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
  bool usage = false;       // a last chunk says how many tokens there were
  bool continuous = false;  // and each chunk how many there are so far
};
StreamOptions read_stream_options(Fields& fields, UnknownFields& unknown);

// vLLM's fields beside OpenAI's log probabilities.
struct MoreLogprobs {
  std::optional<int> prompt;            // prompt_logprobs: alternatives beside every prompt token's
  bool named = false;                   // logprob_token_ids: of these instead of the most likely
  bool token_ids = false;               // return_token_ids
  TokenNames names = TokenNames::text;  // return_tokens_as_token_ids
};
// Call it after OpenAI's own fields have been read into `params`.
MoreLogprobs read_more_logprobs(Fields& fields, int64_t vocab, bool stream, engine::Params& params);

// Refuses fields of tools, for request forms that have none.
void refuse_tools(Fields& fields);

// Every other field that OpenAI or SGLang define: metadata is passed over, what would change the answer and is not
// implemented is refused. Never ignored: a client that asked for JSON must not be handed prose.
void refuse_what_is_not_there(Fields& fields);

}  // namespace sluice::server
