// SPDX-License-Identifier: Apache-2.0
// The engine's answers through the shared library: texts, log probabilities, sampling, grammars, chats, refusals,
// defaults.
#include <algorithm>
#include <cmath>

#include "tests/capi/engine_case.h"

namespace {

TEST_F(CapiEngine, ABatchGivesTheCardsText) {
  const auto prompt = encode(kPrompt), other = encode("Once upon a time");
  const auto answers = run({request(prompt, 48), request(other, 9), request(prompt, 48)});
  ASSERT_EQ(answers.size(), 3u);
  EXPECT_EQ(answers.at({0, 0}).text, kContinuation);
  EXPECT_EQ(answers.at({2, 0}).text, kContinuation);
  EXPECT_EQ(answers.at({0, 0}).ids.size(), 48u);
  EXPECT_EQ(answers.at({0, 0}).finish, SLUICE_FINISH_LENGTH);
  EXPECT_EQ(answers.at({1, 0}).ids.size(), 9u);
  // Alone and from the prefix cache, the same text.
  EXPECT_EQ(run({request(other, 9)}).at({0, 0}).text, answers.at({1, 0}).text);
  std::string decoded(answers.at({0, 0}).text.size() + 1, '?');
  const auto& ids = answers.at({0, 0}).ids;
  ASSERT_EQ(sluice_engine_decode(engine_, ids.data(), ids.size(), 1, decoded.data(), decoded.size(), nullptr),
            SLUICE_OK);
  EXPECT_EQ(decoded.c_str(), kContinuation);
}

TEST_F(CapiEngine, LogprobsAreTheModels) {
  const auto prompt = encode(kPrompt);
  // A session of the same model gives the logits themselves.
  sluice::Context context(2);
  auto options = sluice::Model::default_options();
  options.dtype = "float32";
  const sluice::Model model(context, kFolder, options);
  sluice::Session session(model, 200);
  std::vector<std::vector<float>> logits;  // after each token of the prompt
  for (const int32_t id : prompt) logits.push_back(session.append({id}));
  const auto logprob = [&](const std::vector<float>& row, int32_t token) {
    double sum = 0;
    const float most = *std::max_element(row.begin(), row.end());
    for (const float x : row) sum += std::exp(double{x} - most);
    return row[static_cast<size_t>(token)] - most - std::log(sum);
  };

  auto r = request(prompt, 1);
  const std::vector<int32_t> asked{5, 3, 77};
  r.logprobs = 1;
  r.top_logprobs = 3;
  r.logprob_tokens = asked.data();
  r.logprob_token_count = asked.size();
  r.prompt_logprobs = 1;
  const Answer a = run({r}).at({0, 0});
  ASSERT_EQ(a.prompt.size(), prompt.size() - 1);
  for (size_t i = 1; i < prompt.size(); ++i) {
    EXPECT_EQ(a.prompt[i - 1].token, prompt[i]);
    EXPECT_NEAR(a.prompt[i - 1].logprob, logprob(logits[i - 1], prompt[i]), 1e-5);
  }
  ASSERT_EQ(a.logprobs.size(), 1u);
  EXPECT_NEAR(a.logprobs[0], logprob(logits.back(), a.ids[0]), 1e-5);
  ASSERT_EQ(a.top[0].size(), 3u);
  EXPECT_EQ(a.top[0][0].token, a.ids[0]);  // greedy
  EXPECT_GE(a.top[0][0].logprob, a.top[0][1].logprob);
  ASSERT_EQ(a.asked[0].size(), asked.size());
  for (size_t i = 0; i < asked.size(); ++i) {
    EXPECT_EQ(a.asked[0][i].token, asked[i]);
    EXPECT_NEAR(a.asked[0][i].logprob, logprob(logits.back(), asked[i]), 1e-5);
  }

  // A score without new tokens.
  auto score = request(prompt, 0);
  score.score_only = 1;
  score.prompt_logprobs = 1;
  score.prompt_logprobs_from = static_cast<int64_t>(prompt.size()) - 2;
  const Answer s = run({score}).at({0, 0});
  EXPECT_TRUE(s.ids.empty());
  ASSERT_EQ(s.prompt.size(), 2u);
  EXPECT_NEAR(s.prompt[1].logprob, a.prompt.back().logprob, 1e-6);
}

TEST_F(CapiEngine, SamplingIsTheSeeds) {
  const auto prompt = encode("Once upon a time");
  auto r = request(prompt, 12);
  r.temperature = 1;
  r.seed = 5;
  r.n = 3;
  const auto first = run({r}), again = run({r});
  ASSERT_EQ(first.size(), 3u);
  for (const auto& [key, a] : first) EXPECT_EQ(a.ids, again.at(key).ids);
  EXPECT_NE(first.at({0, 0}).ids, first.at({0, 1}).ids);
  r.seed = 6;
  EXPECT_NE(run({r}).at({0, 0}).ids, first.at({0, 0}).ids);
  // One token that bias makes certain, ended by a stop string, and by a stop token.
  const int32_t wanted = encode(" the").back();
  const float bias = 100;
  r.n = 1;
  r.bias_tokens = &wanted;
  r.bias_values = &bias;
  r.bias_count = 1;
  const char* const stop = "the the";
  r.stop = &stop;
  r.stop_count = 1;
  const Answer stopped = run({r}).at({0, 0});
  EXPECT_EQ(stopped.finish, SLUICE_FINISH_STOP);
  EXPECT_EQ(stopped.stop_string, stop);
  EXPECT_EQ(stopped.text, " ");
  r.stop_count = 0;
  r.stop_tokens = &wanted;
  r.stop_token_count = 1;
  r.include_stop = 1;
  const Answer ended = run({r}).at({0, 0});
  EXPECT_EQ(ended.stop_token, wanted);
  EXPECT_EQ(ended.ids, std::vector<int32_t>{wanted});
}

TEST_F(CapiEngine, AnswersUnderAGrammar) {
  const auto prompt = encode(kPrompt);
  auto r = request(prompt, 40);
  r.grammar_kind = SLUICE_GRAMMAR_REGEX;
  r.grammar = "(yes|no)";
  sluice_stream* stream = nullptr;
  const sluice_status status = sluice_engine_submit(engine_, &r, 1, 0, &stream);
  if (status == SLUICE_UNSUPPORTED) GTEST_SKIP() << sluice_last_error();
  ASSERT_EQ(status, SLUICE_OK) << sluice_last_error();
  const Answer a = read_all(stream).at({0, 0});
  sluice_stream_destroy(stream);
  EXPECT_TRUE(a.text == "yes" || a.text == "no") << a.text;
  EXPECT_EQ(a.finish, SLUICE_FINISH_STOP);
  r.grammar = "(";
  EXPECT_EQ(sluice_engine_submit(engine_, &r, 1, 0, &stream), SLUICE_INVALID_ARGUMENT);
  r.grammar = nullptr;
  expect_refusal(r, "grammar is NULL; it must be given");
  r.grammar_kind = SLUICE_GRAMMAR_NONE;
  r.grammar = "(yes|no)";
  expect_refusal(r, "grammar is given, but grammar_kind is SLUICE_GRAMMAR_NONE; accepted: one of the others");
  r.grammar_kind = 9;
  EXPECT_EQ(sluice_engine_submit(engine_, &r, 1, 0, &stream), SLUICE_INVALID_ARGUMENT);
}

TEST_F(CapiEngine, RefusalsAreSentences) {
  const auto prompt = encode(kPrompt);
  auto r = request({}, 4);
  expect_refusal(r, "prompt has no tokens; at least one is needed");
  r = request(prompt, -2);
  expect_refusal(r, "-2 new tokens are asked for; accepted: 1 or more");
  r = request(prompt, 4);
  r.temperature = -1;
  expect_refusal(r, "temperature is -1; accepted: 0 or more, finite");
  r = request(prompt, 4);
  r.prompt = nullptr;
  expect_refusal(r, ("prompt is NULL and its count is " + std::to_string(prompt.size())).c_str());
  r = request(prompt, 4);
  r.score_only = 1;
  expect_refusal(r, "max_new_tokens is 4 with score_only; accepted: 0");
  EXPECT_EQ(sluice_engine_submit(engine_, &r, 0, 0, nullptr), SLUICE_INVALID_ARGUMENT);
  sluice_engine* none = nullptr;
  EXPECT_EQ(sluice_engine_create("/nowhere", nullptr, &none), SLUICE_NOT_FOUND);
  EXPECT_STREQ(sluice_last_error(), "/nowhere does not exist; a model is a folder with config.json and safetensors");
  EXPECT_EQ(sluice_engine_create(nullptr, nullptr, &none), SLUICE_INVALID_ARGUMENT);
  auto options = SLUICE_INIT(sluice_engine_options);
  options.device = "abacus";
  EXPECT_EQ(sluice_engine_create(kFolder.c_str(), &options, &none), SLUICE_INVALID_ARGUMENT);
  const auto expect_refused = [&](auto sluice_engine_options::*field, int value, const char* sentence) {
    auto o = SLUICE_INIT(sluice_engine_options);
    o.*field = value;
    EXPECT_EQ(sluice_engine_create(kFolder.c_str(), &o, &none), SLUICE_INVALID_ARGUMENT);
    EXPECT_STREQ(sluice_last_error(), sentence);
  };
  using Options = sluice_engine_options;
  expect_refused(&Options::graph_max_sequences, 5000,
                 "graph_max_sequences is 5000; accepted: 1 to 4096, 0 for the default, -1 for no graphs");
  expect_refused(&Options::block_size, -1, "block_size is -1; accepted: 1 to 4096, 0 for the default");
  expect_refused(&Options::state_snapshots, -5,
                 "state_snapshots is -5; accepted: 1 to 65536, 0 for the default, -1 for none");
  expect_refused(&Options::speculative_fixed_steps, 1,
                 "speculative_fixed_steps is 1 beside speculative_steps 0; accepted: with at least one draft");
  auto model = SLUICE_INIT(sluice_model_options);
  model.dtype = "float16";  // a type, but not one that a model runs in
  options = SLUICE_INIT(sluice_engine_options);
  options.model = &model;
  EXPECT_EQ(sluice_engine_create(kFolder.c_str(), &options, &none), SLUICE_INVALID_ARGUMENT);
  EXPECT_STREQ(sluice_last_error(), "options.dtype is \"float16\"; accepted: bfloat16, float32");
  EXPECT_EQ(none, nullptr);
  sluice_engine_destroy(nullptr);
  sluice_stream_destroy(nullptr);
  sluice_stream_cancel(nullptr);
}

TEST_F(CapiEngine, ChatsByTheTemplate) {
  size_t count = 0;
  EXPECT_EQ(sluice_engine_encode_chat(engine_, "[]", nullptr, 1, nullptr, 0, &count), SLUICE_INVALID_ARGUMENT);
  const char* const chat = R"([{"role": "user", "content": "Hello"}])";
  const sluice_status status = sluice_engine_encode_chat(engine_, chat, nullptr, 1, nullptr, 0, &count);
  ASSERT_EQ(status, SLUICE_BUFFER_TOO_SMALL) << sluice_last_error();
  std::vector<int32_t> ids(count);
  ASSERT_EQ(sluice_engine_encode_chat(engine_, chat, nullptr, 1, ids.data(), ids.size(), &count), SLUICE_OK);
  EXPECT_GT(ids.size(), encode("Hello").size());
  EXPECT_EQ(sluice_engine_encode_chat(engine_, chat, "[1]", 1, nullptr, 0, &count), SLUICE_INVALID_ARGUMENT);
  // python/tests/test_engine_chats.py has more of them.
  const auto refuse = [&](const char* messages, const char* variables, sluice_status expected, const char* sentence) {
    EXPECT_EQ(sluice_engine_encode_chat(engine_, messages, variables, 1, nullptr, 0, &count), expected) << sentence;
    EXPECT_STREQ(sluice_last_error(), sentence);
  };
  // No file is at fault for what the caller wrote.
  refuse(
      "[[", nullptr, SLUICE_INVALID_ARGUMENT,
      "messages is not JSON at byte 3: syntax error while parsing value - unexpected end of input; expected '[', '{', "
      "or a literal");
  refuse(R"([{"role": "user", "role": "user"}])", nullptr, SLUICE_INVALID_ARGUMENT,
         "messages has the key \"role\" twice in one object");
  refuse(R"([{"role": "robot", "content": "x"}])", nullptr, SLUICE_INVALID_ARGUMENT,
         "messages[0].role is \"robot\"; accepted: system, developer, user, assistant, tool");
  refuse(chat, "x", SLUICE_INVALID_ARGUMENT,
         "variables is not JSON at byte 1: syntax error while parsing value - invalid literal; last read: 'x'");
  // Looked at before the messages.
  EXPECT_EQ(sluice_engine_encode_chat(engine_, "[[", nullptr, 1, nullptr, 5, &count), SLUICE_INVALID_ARGUMENT);
  EXPECT_STREQ(sluice_last_error(), "ids is NULL and capacity is 5; capacity must be 0 to ask for the number");
  EXPECT_EQ(sluice_engine_encode_chat(engine_, "[[", nullptr, 1, nullptr, 0, nullptr), SLUICE_INVALID_ARGUMENT);
  EXPECT_STREQ(sluice_last_error(), "count is NULL; it must be given");
  refuse(R"([{"role": "user"}])", nullptr, SLUICE_INVALID_ARGUMENT,
         "messages[0].content is missing; accepted: a string or an array of text parts");
  refuse(chat, R"({"tools": [{}]})", SLUICE_UNSUPPORTED,
         "tools cannot be shown to this model: its chat template knows none");
}

// Zeroed structs say what c.h documents.
TEST(CapiEngineOptions, ZerosAreTheDefaults) {
  const auto zeros = SLUICE_INIT(sluice_engine_options);
  for (const sluice_engine_options* options : {static_cast<const sluice_engine_options*>(nullptr), &zeros}) {
    sluice_engine* engine = nullptr;
    ASSERT_EQ(sluice_engine_create(kFolder.c_str(), options, &engine), SLUICE_OK) << sluice_last_error();
    auto info = SLUICE_INIT(sluice_engine_info);
    auto model = SLUICE_INIT(sluice_model_info);
    ASSERT_EQ(sluice_engine_get_info(engine, &info), SLUICE_OK);
    ASSERT_EQ(sluice_engine_get_model_info(engine, &model), SLUICE_OK);
    EXPECT_EQ(info.max_running, 32);
    EXPECT_EQ(info.max_queued, 256);
    EXPECT_EQ(info.context_length, model.max_positions);
    EXPECT_EQ(info.cache_tokens,
              std::max<int64_t>(model.max_positions, std::min<int64_t>(32 * model.max_positions, 65536)));

    // A request of zeros but for its prompt: one greedy answer, to the end of the context or of the text.
    const std::vector<int32_t> prompt(static_cast<size_t>(info.context_length - 3), 20);
    auto request = SLUICE_INIT(sluice_request);
    request.prompt = prompt.data();
    request.prompt_count = prompt.size();
    request.ignore_eos = 1;
    auto stated = request;
    stated.n = 1;
    stated.max_new_tokens = 3;
    stated.top_p = 1;
    stated.repetition_penalty = 1;
    sluice_stream* stream = nullptr;
    const sluice_request requests[] = {request, stated};
    ASSERT_EQ(sluice_engine_submit(engine, requests, 2, 0, &stream), SLUICE_OK) << sluice_last_error();
    const Answers answers = read_all(stream);
    sluice_stream_destroy(stream);
    ASSERT_EQ(answers.size(), 2u);
    const Answer &a = answers.at({0, 0}), &b = answers.at({1, 0});
    EXPECT_EQ(a.ids.size(), 3u);
    EXPECT_EQ(a.ids, b.ids);
    EXPECT_EQ(a.finish, SLUICE_FINISH_LENGTH);
    EXPECT_TRUE(a.logprobs.empty() && a.prompt.empty());
    sluice_engine_destroy(engine);
  }
}

}  // namespace
