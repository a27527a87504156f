// SPDX-License-Identifier: Apache-2.0
// What a user asks of the engine, and what comes back.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "grammar/compiler.h"
#include "sampling/logprobs.h"
#include "sampling/sampler.h"

namespace sluice::engine {

using Clock = std::chrono::steady_clock;
inline double seconds(Clock::duration d) { return std::chrono::duration<double>(d).count(); }
using RequestId = uint64_t;

inline constexpr int64_t kMaxChoices = 128;    // n
inline constexpr int kMaxTopLogprobs = 20;     // as OpenAI
inline constexpr size_t kMaxStopStrings = 16;  // each at most kMaxStopBytes
inline constexpr size_t kMaxStopBytes = 1024;
inline constexpr size_t kMaxStopTokens = 1024;
inline constexpr size_t kMaxLogitBias = 4096;
inline constexpr size_t kMaxBadWords = 1024;  // each at most kMaxBadWordTokens
inline constexpr size_t kMaxBadWordTokens = 256;
inline constexpr size_t kMaxLogprobTokens = 128;  // each costs a pass over the vocabulary per new token

// A model's thoughts before its answer, which no grammar constrains.
struct Thoughts {
  int32_t open = -1;   // the token that begins them, as the first of the answer; -1: the answer begins inside of them
  int32_t close = -1;  // the token that ends them; -1: there are none
};

// Everything about the answer. Choice i of n takes the seed `sampling.seed` for i = 0 and one derived from it and i for
// the others, so that the first choice does not depend on n.
struct Params {
  int64_t n = 1;                      // answers to the same prompt
  std::optional<int64_t> max_tokens;  // new tokens per choice; none: up to the context's end. 0: only score the prompt
  int64_t min_tokens = 0;             // new tokens before a stop token may be chosen or a stop string ends the answer
  sampling::SamplingOptions sampling;

  std::vector<std::string> stop;     // texts that end the answer; need a tokenizer
  std::vector<int32_t> stop_tokens;  // beside the model's own end tokens
  bool ignore_eos = false;           // the model's end tokens do not end the answer; stop_tokens still do
  bool include_stop = false;         // what ended the answer stays in the text
  bool skip_special_tokens = true;   // in the text

  // Sequences of tokens that the answer never holds: the last token of one cannot follow the others. An answer for
  // which these, sampling.allowed_tokens, the grammar and min_tokens leave no token ends with FinishReason::stop.
  std::vector<std::vector<int32_t>> bad_words;

  // What the text must be, after the thoughts; null: anything. The tokens that end an answer can be chosen only where
  // the text is complete. Where the grammar takes no token more and none ends the answer (ignore_eos, min_tokens), it
  // ends with FinishReason::stop; at max_tokens with FinishReason::length, and the text is not complete.
  grammar::GrammarPtr grammar;
  Thoughts thoughts;

  bool logprobs = false;                // of every new token
  int top_logprobs = 0;                 // number of most likely alternatives to report, also for the prompt
  std::vector<int32_t> logprob_tokens;  // tokens to report too, also for the prompt
  // Log probabilities of the prompt's tokens from this position on (position 0 has none: nothing comes before it). The
  // prefix cache is not used from there on. Given with the first choice only.
  std::optional<int64_t> prompt_logprobs_from;
};

struct Request {
  std::vector<int32_t> prompt;  // token ids
  Params params;
  int64_t priority = 0;    // larger ones are taken up first and give their cache back last; equals by arrival
  std::string cache_salt;  // prefixes are shared among requests with the same one only
  // Seconds since the request was added; 0: none. Not looked at while the engine is held.
  double queue_timeout = 0;     // until its first step; then it ends with FinishReason::timed_out
  double timeout = 0;           // until its end; then it ends with what there is, as cancelled
  bool routed_experts = false;  // Event::routed_experts is wanted. The prefix cache is not used.
  int64_t routed_from = 0;      // the first token of the prompt whose experts are wanted
};

// What a request is checked against; Engine::limits() gives the model's and configuration's.
struct Limits {
  int64_t vocab = 0;
  int64_t context_length = 0;  // prompt and new tokens together
  bool has_tokenizer = false;
  bool routed_experts = false;  // the model has experts, on the host
};

// Throws invalid_argument: one sentence that begins with the parameter's name (as spelt in Request and Params,
// SamplingOptions included), then its value and what would be accepted. "temperature is -1; accepted: 0 or more".
void validate(const Request& request, const Limits& limits);

enum class FinishReason : uint8_t {
  none,       // more will come
  stop,       // a stop token or string; Event says which
  length,     // max_tokens, or the context is full
  cancelled,  // by cancel(), by its own timeout, or the engine is shut down
  timed_out,  // its queue_timeout or timeout passed before its first step; Event::error says when
  error,      // Event::error says what went wrong
};
// "stop", "length", "cancelled", "timed out", "error"; "" for none
const char* to_string(FinishReason reason);

// Of one choice, in its last event.
struct Usage {
  int64_t prompt_tokens = 0, cached_tokens = 0;  // cached: of the prompt, found in the prefix cache
  int64_t completion_tokens = 0;                 // the stop token included
  int64_t drafted = 0, accepted = 0;             // tokens guessed ahead, and right
  int64_t verify_rounds = 0;                     // steps that had drafts to check; each gave a token of its own as well
  int64_t preemptions = 0;
  double queue_seconds = 0;        // until its first step
  double first_token_seconds = 0;  // until its first token; both since the request was added
  double total_seconds = 0;
};

// What one step added to one choice. `text` is valid UTF-8 and final: half characters and what may become a stop string
// are held back. The texts of all events in order are the answer. Several events may be merged into one with the same
// meaning; exactly one, the last of its choice, has a finish reason.
struct Event {
  RequestId request = 0;
  int choice = 0;               // 0 to n - 1
  std::vector<int32_t> tokens;  // the stop token and a stop string's tokens included
  std::string text;
  std::vector<sampling::TokenLogprob> logprobs;         // one per token when Params::logprobs
  std::vector<sampling::TokenLogprob> prompt_logprobs;  // all at once, not after the first token
  FinishReason reason = FinishReason::none;
  std::optional<int32_t> stop_token;  // what ended it, for FinishReason::stop
  std::optional<std::string> stop_string;
  std::string error;
  // In the last event, when Request::routed_experts: the experts of all tokens but the last, prompt and answer, in
  // every layer: [tokens - 1, layers, K], descending by the router's key; -1 in layers without experts. The first
  // Request::routed_from tokens are left out.
  std::vector<int32_t> routed_experts;
  Usage usage;  // complete when finished; prompt_tokens and cached_tokens are right from the first token on
};

// Called on the engine's thread; must not block and must not call the engine. What it throws ends the request's choice
// as cancelled. The event is reused: copy what is needed later.
using Sink = std::function<void(const Event&)>;

}  // namespace sluice::engine
