// SPDX-License-Identifier: Apache-2.0
#include "engine/request.h"

#include "base/error.h"
#include "text/utf8.h"

namespace sluice::engine {

namespace {
void validate_stops(const Params& p, const Limits& limits) {
  check(p.stop.size() <= kMaxStopStrings, "stop has {} strings; accepted: at most {}", p.stop.size(), kMaxStopStrings);
  check(p.stop.empty() || limits.has_tokenizer,
        "stop has {} strings; accepted: none, there is no tokenizer to make text", p.stop.size());
  for (const std::string& s : p.stop) {
    check(!s.empty() && s.size() <= kMaxStopBytes, "stop has a string of {} bytes; accepted: 1 to {}", s.size(),
          kMaxStopBytes);
    check(text::to_valid_utf8(s) == s, "stop has a string that is not valid UTF-8");
  }
  check(p.stop_tokens.size() <= kMaxStopTokens, "stop_tokens has {} ids; accepted: at most {}", p.stop_tokens.size(),
        kMaxStopTokens);
  for (const int32_t id : p.stop_tokens)
    check(id >= 0 && id < limits.vocab, "stop_tokens has the id {}; accepted: 0 to {}", id, limits.vocab - 1);
}

void validate_tokens(const Params& p, const Limits& limits) {
  check(p.bad_words.size() <= kMaxBadWords, "bad_words has {} sequences; accepted: at most {}", p.bad_words.size(),
        kMaxBadWords);
  for (const std::vector<int32_t>& word : p.bad_words) {
    check(!word.empty() && word.size() <= kMaxBadWordTokens, "bad_words has a sequence of {} tokens; accepted: 1 to {}",
          word.size(), kMaxBadWordTokens);
    for (const int32_t id : word)
      check(id >= 0 && id < limits.vocab, "bad_words has the id {}; accepted: 0 to {}", id, limits.vocab - 1);
  }
  for (const int32_t id : {p.thoughts.open, p.thoughts.close})
    check(id >= -1 && id < limits.vocab, "thoughts has the id {}; accepted: -1 to {}", id, limits.vocab - 1);
  check(p.logprob_tokens.size() <= kMaxLogprobTokens, "logprob_tokens has {} ids; accepted: at most {}",
        p.logprob_tokens.size(), kMaxLogprobTokens);
  for (const int32_t id : p.logprob_tokens)
    check(id >= 0 && id < limits.vocab, "logprob_tokens has the id {}; accepted: 0 to {}", id, limits.vocab - 1);
}

void validate_length(const Request& r, const Limits& limits) {
  const Params& p = r.params;
  const auto length = static_cast<int64_t>(r.prompt.size());
  check(length > 0, "prompt has no tokens; at least one is needed");
  check(length <= limits.context_length, "prompt has {} tokens; the context is {}", length, limits.context_length);
  const bool scores = p.prompt_logprobs_from.has_value();
  const int64_t least = scores ? 0 : 1;
  check(!p.max_tokens || *p.max_tokens >= least, "{} new tokens are asked for; accepted: {} or more",
        p.max_tokens.value_or(0), least);
  check(!p.max_tokens || *p.max_tokens <= limits.context_length - length,
        "{} new tokens are asked for; accepted: at most {}, what a prompt of {} tokens leaves of the context of {}",
        p.max_tokens.value_or(0), limits.context_length - length, length, limits.context_length);
  check(p.max_tokens || scores || length < limits.context_length,
        "prompt has {} tokens; the context of {} leaves no room for an answer", length, limits.context_length);
  const int64_t most = p.max_tokens.value_or(limits.context_length - length);
  check(p.min_tokens >= 0 && p.min_tokens <= most,
        "at least {} new tokens are asked for; accepted: 0 to {}, the most of the answer", p.min_tokens, most);
  for (const int32_t id : r.prompt)
    check(id >= 0 && id < limits.vocab, "prompt has the token id {}; accepted: 0 to {}", id, limits.vocab - 1);
}
}  // namespace

void validate(const Request& request, const Limits& limits) {
  const Params& p = request.params;
  validate_length(request, limits);
  check(p.n >= 1 && p.n <= kMaxChoices, "n is {}; accepted: 1 to {}", p.n, kMaxChoices);
  check(p.top_logprobs >= 0 && p.top_logprobs <= kMaxTopLogprobs, "top_logprobs is {}; accepted: 0 to {}",
        p.top_logprobs, kMaxTopLogprobs);
  check(p.top_logprobs == 0 || p.logprobs || p.prompt_logprobs_from,
        "top_logprobs is {}, but neither logprobs nor prompt_logprobs_from asks for any", p.top_logprobs);
  check(!p.prompt_logprobs_from ||
            (*p.prompt_logprobs_from >= 0 && *p.prompt_logprobs_from < static_cast<int64_t>(request.prompt.size())),
        "prompt_logprobs_from is {}; accepted: 0 to {}, a position of the prompt", p.prompt_logprobs_from.value_or(0),
        request.prompt.size() - 1);
  check(p.sampling.logit_bias.size() <= kMaxLogitBias, "logit_bias has {} tokens; accepted: at most {}",
        p.sampling.logit_bias.size(), kMaxLogitBias);
  check(request.queue_timeout >= 0 && request.timeout >= 0,
        "queue_timeout and timeout are {} and {}; accepted: 0 or more", request.queue_timeout, request.timeout);
  check(!request.routed_experts || limits.routed_experts,
        "routed_experts are wanted, but this model has no experts, or they run on another device than the cpu");
  check(request.routed_from >= 0 && request.routed_from <= static_cast<int64_t>(request.prompt.size()),
        "routed_from is {}; accepted: 0 to {}, the tokens of the prompt", request.routed_from, request.prompt.size());
  sampling::validate(p.sampling, limits.vocab);
  validate_stops(p, limits);
  validate_tokens(p, limits);
}

const char* to_string(FinishReason reason) {
  switch (reason) {
    case FinishReason::none:
      return "";
    case FinishReason::stop:
      return "stop";
    case FinishReason::length:
      return "length";
    case FinishReason::cancelled:
      return "cancelled";
    case FinishReason::timed_out:
      return "timed out";
    case FinishReason::error:
      return "error";
  }
  return "";
}

}  // namespace sluice::engine
