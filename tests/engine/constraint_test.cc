// SPDX-License-Identifier: Apache-2.0
// Answers under grammars: what comes out fits, greedy and at temperature 2, alone and in batches that run out of
// memory, with drafts and without, after thoughts; log probabilities stay the model's.
#include <regex>

#include "engine/constraint.h"
#include "io/json_value.h"
#include "tests/engine/fixture.h"
#include "tests/support/random.h"
#include "tests/support/test_name.h"

namespace sluice::engine {
namespace {

using grammar::Kind;
using grammar::Source;

const std::vector<int32_t> kPrompt{17, 200, 31, 8, 90};

grammar::GrammarPtr compile(const model::Model& model, const Source& source) {
  static std::map<const model::Model*, std::unique_ptr<grammar::GrammarCompiler>> compilers;
  auto& compiler = compilers[&model];
  const model::ModelInfo& info = model.info();
  if (!compiler)
    compiler =
        std::make_unique<grammar::GrammarCompiler>(grammar::vocabulary_of(tokenizer(), info.vocab, info.stop_tokens));
  return compiler->compile(source);
}

// A form whose every text is short, so that every answer can be complete.
const Source kOrder{Kind::json_schema,
                    R"({"type":"object","properties":{"size":{"enum":["small","large"]},"count":{"type":"integer",)"
                    R"("minimum":1,"maximum":99},"notes":{"type":"array","items":{"type":"string","maxLength":4},)"
                    R"("maxItems":3},"gift":{"type":"boolean"}},"required":["size","count","notes","gift"]})"};
bool is_order(const std::string& text) {
  const io::JsonValue v = io::parse_json_value(text, "the answer");
  const auto* object = v.as<io::JsonValue::Object>();
  if (object == nullptr || object->size() != 4) return false;
  const auto* size = v.find("size")->as<std::string>();
  const auto* count = v.find("count")->as<int64_t>();
  const auto* notes = v.find("notes")->as<io::JsonValue::Array>();
  if (size == nullptr || count == nullptr || notes == nullptr || v.find("gift")->as<bool>() == nullptr) return false;
  for (const io::JsonValue& note : *notes) {
    const auto* s = note.as<std::string>();  // at most 4 characters of at most 4 bytes
    if (s == nullptr || s->size() > 16) return false;
  }
  return (*size == "small" || *size == "large") && *count >= 1 && *count <= 99 && notes->size() <= 3;
}
const Source kCode{Kind::regex, "[A-Z]{2}-[0-9]{3,5}(/(north|south))?"};
bool is_code(const std::string& text) {
  return std::regex_match(text, std::regex("[A-Z]{2}-[0-9]{3,5}(/(north|south))?"));
}

class Constrained : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (!grammar::why_not_available().empty()) GTEST_SKIP() << grammar::why_not_available();
  }
  const model::Model& model() { return load(fixture_folder(GetParam())); }
  Request constrained(const Source& source, double temperature, uint64_t seed, int64_t max_tokens = 240) {
    Request r = request(kPrompt, max_tokens, temperature, seed);
    r.params.grammar = compile(model(), source);
    // White space, of which a grammar of JSON allows much, would fill the answers of a model that knows nothing.
    for (int32_t id = 0; id < model().info().vocab; ++id)
      if (tokenizer().bytes_of(id).find_first_of(" \t\r\n") != std::string_view::npos)
        r.params.sampling.logit_bias.emplace_back(id, -50.0f);
    return r;
  }
};

EngineConfig small_config(int drafts = 0) {
  EngineConfig config;
  config.context_length = 256;
  config.block_size = 8;
  config.speculative_steps = drafts;
  return config;
}

TEST_P(Constrained, AnswersFit) {
  std::mt19937 random = test::rng();
  for (const int drafts : {0, 3}) {
    if (drafts > 0 && !model().info().has_draft) continue;
    Engine engine(test_context(), model(), &tokenizer(), small_config(drafts));
    Collector c;
    std::vector<std::pair<RequestId, bool>> ids;  // of an order
    for (const double temperature : {0.0, 1.0, 2.0})
      for (const bool order : {true, false})
        for (const bool ignore_eos : {true, false}) {
          Request r = constrained(order ? kOrder : kCode, temperature, random());
          r.params.ignore_eos = ignore_eos;
          r.params.n = 2;
          if (temperature == 1) r.params.sampling.top_k = 20;
          ids.emplace_back(engine.add(r, c.sink()), order);
        }
    run_all(engine);
    for (const auto& [id, order] : ids)
      for (int choice = 0; choice < 2; ++choice) {
        const Answer& a = c.of(id, choice);
        ASSERT_EQ(a.reason(), FinishReason::stop) << a.text << a.last.error;
        EXPECT_TRUE(order ? is_order(a.text) : is_code(a.text)) << a.text;
      }
  }
}

TEST_P(Constrained, DraftsChangeNothing) {
  if (!model().info().has_draft) GTEST_SKIP() << "no draft head";
  std::mt19937 random = test::rng();
  Engine plain(test_context(), model(), &tokenizer(), small_config());
  Engine drafting(test_context(), model(), &tokenizer(), small_config(3));
  for (const double temperature : {0.0, 2.0})
    for (const Source& source : {kOrder, kCode}) {
      Request r = constrained(source, temperature, random());
      EXPECT_EQ(run_one(drafting, r).tokens, run_one(plain, r).tokens);
      r.params.logprobs = true;
      const Answer a = run_one(drafting, r), b = run_one(plain, r);
      ASSERT_EQ(a.logprobs.size(), b.logprobs.size());
      for (size_t i = 0; i < a.logprobs.size(); ++i)
        EXPECT_EQ(a.logprobs[i].chosen.logprob, b.logprobs[i].chosen.logprob);
    }
  EXPECT_GT(drafting.metrics().drafted, 0);
}

TEST_P(Constrained, BatchesAndPreemptionsChangeNothing) {
  std::mt19937 random = test::rng();
  Engine alone(test_context(), model(), &tokenizer(), small_config());
  EngineConfig tight = small_config();
  tight.cache_tokens = 256;  // one context
  tight.prefill_chunk = 3;
  Engine crowded(test_context(), model(), &tokenizer(), tight);
  std::vector<Request> requests;
  for (int i = 0; i < 24; ++i) {
    requests.push_back(constrained(i % 2 == 0 ? kOrder : kCode, i % 3, random()));
    if (i % 5 == 4) requests.back().params.grammar = nullptr, requests.back().params.max_tokens = 120;
  }
  Collector c;
  std::vector<RequestId> ids;
  for (const Request& r : requests) ids.push_back(crowded.add(r, c.sink()));
  run_all(crowded);
  for (size_t i = 0; i < requests.size(); ++i) EXPECT_EQ(c.of(ids[i]).tokens, run_one(alone, requests[i]).tokens) << i;
  EXPECT_GT(crowded.metrics().preemptions, 0);
}

// What the model thought of the tokens, as if nothing had constrained them.
TEST_P(Constrained, LogProbabilitiesAreTheModels) {
  Engine engine(test_context(), model(), &tokenizer(), small_config());
  Request r = constrained(kCode, 2, 5);
  r.params.logprobs = true;
  const Answer a = run_one(engine, r);
  ASSERT_EQ(a.logprobs.size(), a.tokens.size());
  Request score = request(kPrompt, 0);
  score.prompt.insert(score.prompt.end(), a.tokens.begin(), a.tokens.end());
  score.params.prompt_logprobs_from = static_cast<int64_t>(kPrompt.size());
  const Answer scored = run_one(engine, score);
  ASSERT_EQ(scored.prompt_logprobs.size(), a.tokens.size());
  for (size_t i = 0; i < a.tokens.size(); ++i)
    EXPECT_EQ(a.logprobs[i].chosen.logprob, scored.prompt_logprobs[i].chosen.logprob) << i;
}

TEST_P(Constrained, EndsOfAnswers) {
  Engine engine(test_context(), model(), &tokenizer(), small_config());
  // Cut inside the structure.
  const Answer cut = run_one(engine, constrained(kOrder, 0, 0, 5));
  EXPECT_EQ(cut.reason(), FinishReason::length);
  EXPECT_EQ(cut.tokens.size(), 5u);
  grammar::GrammarState state(compile(model(), kOrder));
  EXPECT_TRUE(state.accept_bytes(cut.text));
  EXPECT_FALSE(state.may_end());
  // A stop token of the request ends it where the text may end, and nowhere else.
  Request r = constrained({Kind::regex, "(ab){1,3}"}, 0, 0);
  r.params.stop_tokens = {3};
  r.params.sampling.logit_bias = {{3, 100.0f}};
  const Answer stopped = run_one(engine, r);
  EXPECT_EQ(stopped.text, "ab");
  EXPECT_EQ(stopped.last.stop_token, 3);
  // min_tokens keeps stop tokens back, and the grammar ends what cannot go on.
  r.params.min_tokens = 50;
  const Answer longest = run_one(engine, r);
  EXPECT_EQ(longest.text, "ababab");
  EXPECT_EQ(longest.reason(), FinishReason::stop);
  EXPECT_EQ(longest.last.stop_token, std::nullopt);
  // Tokens that the request allows beside the grammar: both must agree.
  Request both = constrained({Kind::regex, "[0-9]{8}"}, 2, 1);
  for (int32_t id = 0; id < model().info().vocab; ++id)
    if (tokenizer().bytes_of(id) == "1" || tokenizer().bytes_of(id) == "x")
      both.params.sampling.allowed_tokens.push_back(id);
  EXPECT_EQ(run_one(engine, both).text, "11111111");
}

TEST_P(Constrained, BeginsAfterTheThoughts) {
  constexpr int32_t kOpen = 6, kClose = 8;
  Engine engine(test_context(), model(), &tokenizer(), small_config());
  Request r = constrained(kCode, 0, 0);
  r.params.sampling.logit_bias = {{kOpen, 50.0f}, {kClose, 100.0f}};
  const std::vector<int32_t> plain = run_one(engine, r).tokens;
  r.params.thoughts = {.open = -1, .close = kClose};
  std::vector<int32_t> tokens = run_one(engine, r).tokens;
  EXPECT_EQ(tokens[0], kClose);
  EXPECT_TRUE(is_code(tokenizer().decode(std::span(tokens).subspan(1))));
  r.params.thoughts.open = kOpen;
  tokens = run_one(engine, r).tokens;
  EXPECT_EQ(tokens[0], kOpen);
  EXPECT_EQ(tokens[1], kClose);
  EXPECT_TRUE(is_code(tokenizer().decode(std::span(tokens).subspan(2))));
  // A model that does not think answers at once; one that thinks does not end in its thoughts.
  r.params.sampling.logit_bias.front().second = -100;
  r.params.sampling.logit_bias.back().second = -100;
  EXPECT_TRUE(is_code(run_one(engine, r).text));
  Request lost = constrained(kCode, 0, 0, 30);
  lost.params.stop_tokens = {3};
  lost.params.sampling.logit_bias = {{3, 100.0f}, {kClose, -100.0f}};
  lost.params.thoughts = {.open = -1, .close = kClose};
  EXPECT_EQ(run_one(engine, lost).reason(), FinishReason::length);
}

// Its masks take longer with every token, and the answers of others wait for them.
TEST(Constraint, AGrammarThatGetsSlowEndsItsAnswer) {
  if (!grammar::why_not_available().empty()) GTEST_SKIP() << grammar::why_not_available();
  const model::Model& model = load(fixture_folder("qwen3-moe"));
  const int64_t vocab = model.info().vocab;
  Constraint constraint(compile(model, {Kind::regex, R"((\w*a?|[ -~])+c)"}), {}, model.info().stop_tokens, vocab);
  std::vector<uint32_t> mask(static_cast<size_t>(sampling::mask_words(vocab)));
  int32_t letter = 0;
  while (tokenizer().bytes_of(letter) != "z") ++letter;
  ASSERT_LT(letter, vocab);
  try {
    for (int i = 0; i < 1000; ++i) {
      constraint.fill({}, mask);
      constraint.accept(letter);
    }
    ADD_FAILURE() << "no limit in 1000 tokens";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::unsupported);
    EXPECT_NE(std::string(e.what()).find("s of processor time for "), std::string::npos) << e.what();
  }
}

INSTANTIATE_TEST_SUITE_P(Fixtures, Constrained, testing::Values("qwen3-moe", "nemotron-h", "deepseek-v3"),
                         test::kNamedByText);

}  // namespace
}  // namespace sluice::engine
