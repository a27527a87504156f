// SPDX-License-Identifier: Apache-2.0
// What OpenAI's two forms of a request share beside the parameters of the answer.
#pragma once

#include <optional>
#include <string>

#include "server/answer.h"
#include "server/fields.h"
#include "server/generation.h"
#include "server/params.h"
#include "server/served_model.h"
#include "server/service.h"

namespace sluice::server {

// Throws ApiError 404 for a model that is not served here. Requests without "model" mean the one that is.
void check_model_name(Fields& fields, const ServedModel& model);

// The client's own name for the request in the field `key`, for /abort_request. Throws ApiError 400 for one of no bytes
// or of more than 256.
std::optional<std::string> read_rid(Fields& fields, std::string_view key);

// An answer's id, and what /abort_request may call its request: SGLang's "rid" or vLLM's "request_id", and the id. A
// request_id is in the id as well, as in vLLM: after the prefix, or alone (in Responses).
enum class RequestIdIn : uint8_t { after_prefix, alone };
Job name_job(Fields& fields, Service& service, std::string_view prefix, RequestIdIn id = RequestIdIn::after_prefix);

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

// What OpenAI's forms have beside the answer, and nothing is done with: whose request it is, whether to store it.
void pass_over_metadata(Fields& fields);

// Refuses fields of tools, for request forms that have none.
void refuse_tools(Fields& fields);

// Every other field that OpenAI or SGLang define: metadata is passed over, what would change the answer and is not
// implemented is refused. Never ignored: a client that asked for JSON must not be handed prose.
void refuse_what_is_not_there(Fields& fields);

}  // namespace sluice::server
