// SPDX-License-Identifier: Apache-2.0
// Steps that begin before the tokens of the one before are known give the answers of steps that wait.
#include <random>

#include "tests/engine/fixture.h"
#include "tests/support/random.h"
#include "tests/support/test_name.h"

namespace sluice::engine {
namespace {

EngineConfig config_of(bool overlap) {
  EngineConfig c;
  c.context_length = 128;
  c.max_running = 6;
  c.block_size = 8;
  c.overlap = overlap;
  return c;
}

// Requests that differ in length, sampling and in what ends them; some cannot be chosen ahead.
std::vector<Request> crowd(std::mt19937& random, int64_t vocab) {
  std::vector<Request> out;
  for (int i = 0; i < 24; ++i) {
    std::vector<int32_t> prompt(1 + random() % 40);
    for (int32_t& t : prompt) t = static_cast<int32_t>(random() % static_cast<uint64_t>(vocab));
    Request r = request(prompt, 1 + static_cast<int64_t>(random() % 40), i % 2 == 0 ? 0.0 : 0.9, random());
    if (i % 4 == 1)
      for (int s = 0; s < 12; ++s)
        r.params.stop_tokens.push_back(static_cast<int32_t>(random() % static_cast<uint64_t>(vocab)));
    if (i % 4 == 3) r.params.sampling.logit_bias = {{static_cast<int32_t>(random() % 300), 2.0f}};
    if (i % 6 == 2) r.params.min_tokens = std::min<int64_t>(3, *r.params.max_tokens);
    if (i % 8 == 5) r.params.stop = {"e"};
    if (i % 12 == 7) r.params.sampling.repetition_penalty = 1.2;
    if (i % 12 == 11) r.params.logprobs = true;
    if (i % 10 == 9) r.params.n = 2;
    out.push_back(r);
  }
  return out;
}

// The answers to `requests`, of which some arrive while others run; after each step `between` may do something.
std::map<std::pair<int, int>, Answer> answers(const model::Model& model, const std::vector<Request>& requests,
                                              const EngineConfig& config, Metrics* metrics = nullptr) {
  Engine engine(test_context(), model, &tokenizer(), config);
  Collector c;
  std::vector<RequestId> ids;
  for (size_t i = 0; i < requests.size(); ++i) {
    ids.push_back(engine.add(requests[i], c.sink()));
    for (size_t s = 0; s < i * 7 % 5; ++s) engine.step();
  }
  run_all(engine);
  std::map<std::pair<int, int>, Answer> out;
  for (size_t i = 0; i < requests.size(); ++i)
    for (int n = 0; n < requests[i].params.n; ++n) out[{static_cast<int>(i), n}] = c.of(ids[i], n);
  if (metrics != nullptr) *metrics = engine.metrics();
  EXPECT_EQ(engine.metrics().blocks_used, 0);
  return out;
}

class Overlap : public testing::TestWithParam<const char*> {};

TEST_P(Overlap, GivesTheAnswersOfWaiting) {
  std::mt19937 random = test::rng();
  const model::Model& model = load(fixture_folder(GetParam()));
  int64_t preemptions = 0;
  for (int round = 0; round < 3; ++round) {
    const std::vector<Request> requests = crowd(random, model.info().vocab);
    const auto compare = [&](EngineConfig config, const char* what) {
      Metrics waited, ahead;
      config.overlap = false;
      const auto expected = answers(model, requests, config, &waited);
      config.overlap = true;
      const auto actual = answers(model, requests, config, &ahead);
      for (const auto& [key, a] : expected) {
        const Answer& b = actual.at(key);
        EXPECT_EQ(b.tokens, a.tokens) << what << ", request " << key.first;
        EXPECT_EQ(b.text, a.text) << what << ", request " << key.first;
        EXPECT_EQ(b.reason(), a.reason()) << what << ", request " << key.first;
        EXPECT_EQ(b.logprobs.size(), a.logprobs.size());
      }
      EXPECT_EQ(ahead.generation_tokens, waited.generation_tokens) << what;
      return ahead;
    };
    EngineConfig config = config_of(true);
    compare(config, "plain");
    config.prefill_chunk = 9;
    compare(config, "prompts in chunks");
    config.cache_tokens = 128;
    preemptions += compare(config, "little memory").preemptions;
    config.prefix_cache = false;
    compare(config, "no prefix cache");
    config.max_running = 1;
    compare(config, "one after another");
  }
  EXPECT_GT(preemptions, 0);
}

INSTANTIATE_TEST_SUITE_P(Fixtures, Overlap, testing::Values("qwen3-moe", "nemotron-h", "deepseek-v3"),
                         test::kNamedByText);

// A text that a stop token ends costs one more step; one that its length ends does not.
TEST(OverlapSteps, AreSurplusAfterAStopTokenOnly) {
  const model::Model& model = load(fixture_folder("qwen3-moe"));
  const auto steps = [&](const Request& r, bool overlap, std::vector<int32_t>* tokens = nullptr) {
    Engine engine(test_context(), model, nullptr, config_of(overlap));
    const Answer a = run_one(engine, r);
    if (tokens != nullptr) *tokens = a.tokens;
    return engine.metrics().steps;
  };
  Request r = request({5, 9, 200, 33}, 20);
  std::vector<int32_t> tokens;
  const int64_t plain = steps(r, false, &tokens);
  EXPECT_EQ(plain, 20);
  EXPECT_EQ(steps(r, true), plain);
  r.params.stop_tokens = {tokens[7]};
  const int64_t stopped = steps(r, false);
  EXPECT_LT(stopped, 20);
  EXPECT_EQ(steps(r, true), stopped + 1);
}

// Whatever is called between two steps finds the results of the earlier ones taken.
TEST(OverlapSteps, AreEndedBeforeAnythingChanges) {
  std::mt19937 random = test::rng();
  const model::Model& model = load(fixture_folder("nemotron-h"));
  const Request r = request({5, 9, 200, 33}, 40);
  Engine alone(test_context(), model, nullptr, config_of(false));
  const std::vector<int32_t> expected = run_one(alone, r).tokens;
  for (int round = 0; round < 40; ++round) {
    Engine engine(test_context(), model, nullptr, config_of(true));
    Collector c;
    std::vector<RequestId> ids;
    for (int i = 0; i < 3; ++i) ids.push_back(engine.add(r, c.sink()));
    for (auto steps = random() % 20; steps > 0; --steps) engine.step();
    size_t cancelled = ids.size();
    switch (round % 5) {
      case 0:
        cancelled = random() % ids.size();
        EXPECT_TRUE(engine.cancel(ids[cancelled]));
        EXPECT_EQ(c.of(ids[cancelled]).reason(), FinishReason::cancelled);
        break;
      case 1:
        engine.retract_all();
        break;
      case 2:
        engine.flush_cache();
        break;
      case 3:
        engine.replace_model(model, Engine::InFlight::keep);
        break;
      case 4: {
        Request timed = r;
        timed.timeout = 1e6;
        ids.push_back(engine.add(timed, c.sink()));
        break;
      }
    }
    if (round % 7 != 6) {  // the engine may also go away with a step under way
      run_all(engine);
      for (size_t i = 0; i < ids.size(); ++i) {
        const std::vector<int32_t>& got = c.of(ids[i]).tokens;
        if (i == cancelled)
          EXPECT_EQ(got, std::vector<int32_t>(expected.begin(), expected.begin() + static_cast<int64_t>(got.size())));
        else
          EXPECT_EQ(got, expected) << "round " << round << ", request " << i;
      }
    }
  }
}

}  // namespace
}  // namespace sluice::engine
