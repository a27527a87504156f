// SPDX-License-Identifier: Apache-2.0
// What the forms of an answer share.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/request.h"
#include "server/json_out.h"
#include "server/served_model.h"

namespace sluice::server {

// The usage of a request, summed over its prompts and choices; each prompt counts once.
struct UsageSum {
  int64_t prompt = 0, cached = 0, completion = 0, drafted = 0, accepted = 0, reasoning = 0;
  double queue_seconds = 0, first_token_seconds = 0, total_seconds = 0;  // the largest

  void add(const engine::Event& event);  // ignores all but a choice's last event
  std::string json() const;              // OpenAI's "usage"
  std::string timings() const;           // milliseconds and rates, as llama.cpp's servers name them
};

// The usage of one choice so far, as OpenAI's "usage".
std::string usage_json(const engine::Usage& usage, int64_t reasoning_tokens = 0);

// "stop", "length", "abort" or null.
std::string finish_reason_json(engine::FinishReason reason);
// SGLang's "matched_stop": the token id or the string that ended the answer, or null.
std::string matched_stop_json(const engine::Event& event);

// The alternatives to show beside a token: those that the request names, else the `top` most likely.
std::span<const sampling::Likelihood> alternatives(const sampling::TokenLogprob& token, int top);

// How log probabilities name a token: by its text, or as vLLM's "token_id:7". Texts of several tokens can be the same.
enum class TokenNames : uint8_t { text, id };
std::string token_name(const ServedModel& model, int32_t id, TokenNames names);

// {"token", "logprob", "bytes"} and "top_logprobs", of OpenAI's chat form.
std::string token_logprob_json(const ServedModel& model, const sampling::TokenLogprob& token, int top,
                               TokenNames names);

// vLLM's prompt_logprobs: [null, {"ID": {"logprob", "rank", "decoded_token"}, ...}, ...]. The rank of a token that is
// not among the `top` most likely is null: it would take a sort of the vocabulary.
std::string prompt_logprobs_json(const ServedModel& model, const std::vector<sampling::TokenLogprob>& tokens, int top);

std::string ids_json(std::span<const int32_t> ids);

// A token's text for a reader: half a character becomes U+FFFD.
std::string token_text(const ServedModel& model, int32_t id);

// Seconds since 1970.
int64_t unix_time();

}  // namespace sluice::server
