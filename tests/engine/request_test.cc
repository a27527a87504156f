// SPDX-License-Identifier: Apache-2.0
// Every parameter out of its range is refused by one sentence with its name, its value and what is accepted.
#include "engine/request.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "base/error.h"

namespace sluice::engine {
namespace {

const Limits kLimits{100, 64, true};

void refuse(const std::string& sentence, const std::function<void(Request&)>& change, const Limits& limits = kLimits) {
  Request r;
  r.prompt = {1, 2, 3, 4};
  r.params.max_tokens = 8;
  EXPECT_NO_THROW(validate(r, limits));
  change(r);
  try {
    validate(r, limits);
    ADD_FAILURE() << "accepted; expected: " << sentence;
  } catch (const Error& e) {
    EXPECT_EQ(e.what(), sentence);
    EXPECT_EQ(e.code(), ErrorCode::invalid_argument);
  }
}

TEST(Request, LengthsAndTokens) {
  refuse("prompt has no tokens; at least one is needed", [](Request& r) { r.prompt.clear(); });
  refuse("prompt has 65 tokens; the context is 64", [](Request& r) { r.prompt.assign(65, 1); });
  refuse("prompt has the token id 100; accepted: 0 to 99", [](Request& r) { r.prompt[2] = 100; });
  refuse("prompt has the token id -1; accepted: 0 to 99", [](Request& r) { r.prompt[0] = -1; });
  refuse("0 new tokens are asked for; accepted: 1 or more", [](Request& r) { r.params.max_tokens = 0; });
  refuse("-5 new tokens are asked for; accepted: 1 or more", [](Request& r) { r.params.max_tokens = -5; });
  refuse(
      "9223372036854775807 new tokens are asked for; accepted: at most 60, what a prompt of 4 tokens leaves of the "
      "context "
      "of 64",
      [](Request& r) { r.params.max_tokens = std::numeric_limits<int64_t>::max(); });
  refuse("prompt has 64 tokens; the context of 64 leaves no room for an answer", [](Request& r) {
    r.prompt.assign(64, 1);
    r.params.max_tokens.reset();
  });
  refuse("at least 9 new tokens are asked for; accepted: 0 to 8, the most of the answer",
         [](Request& r) { r.params.min_tokens = 9; });
  refuse("at least -1 new tokens are asked for; accepted: 0 to 8, the most of the answer",
         [](Request& r) { r.params.min_tokens = -1; });
  refuse("n is 1000000000; accepted: 1 to 128", [](Request& r) { r.params.n = 1000000000; });
  refuse("n is 0; accepted: 1 to 128", [](Request& r) { r.params.n = 0; });
  refuse("routed_from is 5; accepted: 0 to 4, the tokens of the prompt", [](Request& r) { r.routed_from = 5; });
  refuse("routed_from is -1; accepted: 0 to 4, the tokens of the prompt", [](Request& r) { r.routed_from = -1; });
}

TEST(Request, Logprobs) {
  refuse("top_logprobs is 1000000; accepted: 0 to 20", [](Request& r) {
    r.params.logprobs = true;
    r.params.top_logprobs = 1000000;
  });
  refuse("top_logprobs is -1; accepted: 0 to 20", [](Request& r) { r.params.top_logprobs = -1; });
  refuse("top_logprobs is 2, but neither logprobs nor prompt_logprobs_from asks for any",
         [](Request& r) { r.params.top_logprobs = 2; });
  refuse("prompt_logprobs_from is 4; accepted: 0 to 3, a position of the prompt",
         [](Request& r) { r.params.prompt_logprobs_from = 4; });
  refuse("-1 new tokens are asked for; accepted: 0 or more", [](Request& r) {
    r.params.prompt_logprobs_from = 0;
    r.params.max_tokens = -1;
  });
}

TEST(Request, Stops) {
  refuse("stop has a string of 0 bytes; accepted: 1 to 1024", [](Request& r) { r.params.stop = {"a", ""}; });
  refuse("stop has a string of 1025 bytes; accepted: 1 to 1024",
         [](Request& r) { r.params.stop = {std::string(1025, 'a')}; });
  refuse("stop has 17 strings; accepted: at most 16", [](Request& r) { r.params.stop.assign(17, "a"); });
  refuse("stop has a string that is not valid UTF-8", [](Request& r) { r.params.stop = {"\xc3"}; });
  refuse("stop has 1 strings; accepted: none, there is no tokenizer to make text",
         [](Request& r) { r.params.stop = {"a"}; }, {100, 64, false});
  refuse("stop_tokens has the id 100; accepted: 0 to 99", [](Request& r) { r.params.stop_tokens = {5, 100}; });
  refuse("stop_tokens has 1025 ids; accepted: at most 1024", [](Request& r) { r.params.stop_tokens.assign(1025, 1); });
}

TEST(Request, TokensByName) {
  refuse("bad_words has the id 100; accepted: 0 to 99", [](Request& r) { r.params.bad_words = {{1, 100}}; });
  refuse("bad_words has a sequence of 0 tokens; accepted: 1 to 256", [](Request& r) { r.params.bad_words = {{}}; });
  refuse("bad_words has 1025 sequences; accepted: at most 1024",
         [](Request& r) { r.params.bad_words.assign(1025, {1}); });
  refuse("logprob_tokens has the id -1; accepted: 0 to 99", [](Request& r) { r.params.logprob_tokens = {-1}; });
  refuse("logprob_tokens has 129 ids; accepted: at most 128",
         [](Request& r) { r.params.logprob_tokens.assign(129, 1); });
  refuse("allowed_tokens names token 100; accepted: 0 to 99",
         [](Request& r) { r.params.sampling.allowed_tokens = {100}; });
}

TEST(Request, Sampling) {
  refuse("temperature is -1; accepted: 0 or more, finite", [](Request& r) { r.params.sampling.temperature = -1; });
  refuse("top_p is 7; accepted: more than 0, at most 1", [](Request& r) { r.params.sampling.top_p = 7; });
  refuse("top_k is -5; accepted: 0 (all) or more", [](Request& r) { r.params.sampling.top_k = -5; });
  refuse("min_p is 9; accepted: 0 to 1", [](Request& r) { r.params.sampling.min_p = 9; });
  refuse("logit_bias names token 1000000000; accepted: 0 to 99", [](Request& r) {
    r.params.sampling.logit_bias = {{1000000000, 1.0f}};
  });
  refuse("logit_bias of token 3 is nan; accepted: -100 to 100", [](Request& r) {
    r.params.sampling.logit_bias = {{3, NAN}};
  });
  refuse("logit_bias has 4097 tokens; accepted: at most 4096", [](Request& r) {
    r.params.sampling.logit_bias.assign(4097, {1, 0.0f});
  });
}

}  // namespace
}  // namespace sluice::engine
