// SPDX-License-Identifier: Apache-2.0
// The parameters of an answer, from the request's fields to engine::Params.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "engine/request.h"
#include "server/fields.h"
#include "server/served_model.h"

namespace sluice::server {

// How the three forms spell what they share.
struct ParamNames {
  std::string_view max_tokens, max_tokens_also, min_tokens, seed;  // "": no such field
  std::optional<int64_t> default_max_tokens;                       // none: up to the context's end
  std::string_view path = "";                                      // where the fields are, for sentences
  int64_t most_choices = engine::kMaxChoices;
};
inline constexpr ParamNames kChatNames{"max_completion_tokens", "max_tokens", "min_tokens", "seed", std::nullopt};
inline constexpr ParamNames kCompletionNames{"max_tokens", "", "min_tokens", "seed", 16};
inline constexpr ParamNames kGenerateNames{"max_new_tokens", "",  "min_new_tokens",
                                           "sampling_seed",  128, "sampling_params."};

// Everything but the log probabilities, which each form asks for in its own way. Throws ApiError 400.
// vocab: of the logits; seed: for a request that gives none.
engine::Params read_params(Fields& fields, const ParamNames& names, const ServedModel& model, int64_t vocab,
                           uint64_t seed);

// Throws ApiError 400 with the code context_length_exceeded, the limit and the counts when prompt and answer do not
// fit; fills in or cuts the default when the request did not say how many tokens it wants. No new tokens at all are an
// answer too, as SGLang gives it: the prompt is read, and is in the prefix cache afterwards.
void fit_to_context(engine::Request& request, const ParamNames& names, int64_t context_length,
                    std::string_view prompt_field);

}  // namespace sluice::server
