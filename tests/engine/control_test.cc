// SPDX-License-Identifier: Apache-2.0
// Pausing, and other weights while requests are in the engine.
#include <thread>

#include "engine/async_engine.h"
#include "tests/engine/fixture.h"

namespace sluice::engine {
namespace {

using std::chrono::milliseconds;
using Hold = AsyncEngine::Hold;

const std::vector<int32_t> kPrompt{20, 45, 77, 101, 13, 7, 8, 9, 10, 11, 12, 14, 15, 16, 17, 18, 19};

// The fixture with the keys' projection of layer 0 doubled: other answers from the first tokens on.
const model::Model& other_weights(const std::string& name) {
  static std::map<std::string, model::LiveModel> all;
  if (all.count(name) == 0) {
    Context ctx = test_context();
    model::LoadOptions o;
    o.path = fixture_folder(name);
    o.dtype = DType::f32;
    const model::LiveModel base = model::load_live_model(ctx, o);
    std::vector<std::pair<std::string, Tensor>> changed;
    for (const std::string& tensor : base.source.names()) {
      if (!tensor.ends_with("k_proj.weight") && !tensor.ends_with("in_proj.weight")) continue;
      Tensor t = base.source.tensor(tensor).clone();
      for (int64_t i = 0; i < t.elements(); ++i) {
        uint16_t& bits = t.as<uint16_t>()[i];
        if ((bits & 0x7f80) != 0) bits = static_cast<uint16_t>(bits + 0x80);  // times 2, in bfloat16
      }
      changed.emplace_back(tensor, t);
    }
    EXPECT_FALSE(changed.empty());
    all[name] = model::update_live_model(ctx, o, base, changed);
  }
  return *all[name].model;
}

EngineConfig small(EngineConfig config = {}) {
  config.cache_tokens = 2048;
  config.block_size = 4;
  return config;
}

Engine make_engine(const std::string& name) {
  return Engine(test_context(), load(fixture_folder(name)), &tokenizer(), small());
}

Request scored(int64_t tokens, uint64_t seed = 3) {
  Request r = request(kPrompt, tokens, 0.8, seed);
  r.params.logprobs = true;
  return r;
}

void expect_same(const Answer& a, const Answer& b) {
  EXPECT_EQ(a.tokens, b.tokens);
  EXPECT_EQ(a.text, b.text);
  ASSERT_EQ(a.logprobs.size(), b.logprobs.size());
  for (size_t i = 0; i < a.logprobs.size(); ++i)
    EXPECT_EQ(a.logprobs[i].chosen.logprob, b.logprobs[i].chosen.logprob) << i;
}

class Control : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Models, Control, testing::Values("qwen3-moe", "nemotron-h"),
                         [](const auto& test) { return std::string(test.param).substr(0, 5); });

TEST_P(Control, RetractedAnswersAreThoseOfAnUninterruptedRun) {
  Engine plain = make_engine(GetParam());
  const Answer expected = run_one(plain, scored(20));
  Engine engine = make_engine(GetParam());
  Collector c;
  const RequestId id = engine.add(scored(20), c.sink());
  for (int i = 0; i < 7; ++i) engine.step();
  engine.retract_all();
  EXPECT_EQ(engine.metrics().running, 0);
  EXPECT_EQ(engine.metrics().waiting, 1);
  EXPECT_EQ(engine.metrics().blocks_used, 0);
  run_all(engine);
  expect_same(c.of(id), expected);
  EXPECT_EQ(c.of(id).last.usage.preemptions, 1);
}

TEST_P(Control, TheSameWeightsInPlaceChangeNothing) {
  Engine plain = make_engine(GetParam());
  const Answer expected = run_one(plain, scored(20));
  Engine engine = make_engine(GetParam());
  Collector c;
  const RequestId id = engine.add(scored(20), c.sink());
  for (int i = 0; i < 7; ++i) engine.step();
  engine.replace_model(load(fixture_folder(GetParam())), Engine::InFlight::keep);
  run_all(engine);
  expect_same(c.of(id), expected);
}

// What was made with the old weights' keys and values is no prefix of a later request. After one step only the prompt's
// blocks are complete, and those that follow them would be found by who has the same prompt and the same tokens.
TEST_P(Control, OldKeysAndValuesAreNobodysPrefix) {
  Engine plain(test_context(), other_weights(GetParam()), &tokenizer(), small());
  const Answer expected = run_one(plain, scored(24, 9));
  for (const int steps : {1, 2, 9})
    for (const bool retract : {false, true}) {
      SCOPED_TRACE(fmt::format("{} steps, {}", steps, retract ? "retracted" : "in place"));
      Engine engine = make_engine(GetParam());
      Collector c;
      const RequestId old = engine.add(scored(40), c.sink());
      for (int i = 0; i < steps; ++i) engine.step();
      if (retract) engine.retract_all();
      engine.replace_model(other_weights(GetParam()), Engine::InFlight::keep);
      // The same prompt comes while the first one runs, and again after it: with its tokens too.
      const RequestId fresh = engine.add(scored(24, 9), c.sink());
      run_all(engine);
      expect_same(c.of(fresh), expected);
      EXPECT_EQ(c.of(old).tokens.size(), 40u);
      expect_same(run_one(engine, scored(24, 9)), expected);
      Request longer = scored(4, 9);
      longer.prompt.insert(longer.prompt.end(), c.of(old).tokens.begin(), c.of(old).tokens.end());
      expect_same(run_one(engine, longer), run_one(plain, longer));
    }
}

// The first tokens are the old weights', those after the change are what the new ones give to the same tokens.
TEST_P(Control, RetractedAnswersGoOnWithTheNewWeights) {
  Engine engine = make_engine(GetParam());
  Collector c;
  const RequestId id = engine.add(scored(20), c.sink());
  for (int i = 0; i < 8; ++i) engine.step();
  engine.retract_all();
  const std::vector<int32_t> begun = c.of(id).tokens;
  ASSERT_FALSE(begun.empty());
  engine.replace_model(other_weights(GetParam()), Engine::InFlight::keep);
  run_all(engine);
  const std::vector<int32_t> all = c.of(id).tokens;
  ASSERT_EQ(all.size(), 20u);
  EXPECT_TRUE(std::equal(begun.begin(), begun.end(), all.begin()));
  // The uniform number of a token follows from seed and position, so the rest is the new model's answer to the whole.
  Engine plain(test_context(), other_weights(GetParam()), &tokenizer(), small());
  Request rest = scored(static_cast<int64_t>(20 - begun.size()));
  rest.prompt.insert(rest.prompt.end(), begun.begin(), begun.end());
  const Answer expected = run_one(plain, rest);
  EXPECT_EQ(std::vector<int32_t>(all.begin() + static_cast<std::ptrdiff_t>(begun.size()), all.end()), expected.tokens);
}

// A prompt that is being scored when it is retracted gets all of its log probabilities from the new weights.
TEST_P(Control, RetractedScoresAreOfTheNewWeightsAlone) {
  EngineConfig config = small();
  config.prefill_chunk = 4;
  Request score = request({}, 0);
  for (int i = 0; i < 20; ++i) score.prompt.push_back(3 + i * 7 % 90);
  score.params.prompt_logprobs_from = 0;
  Engine engine(test_context(), load(fixture_folder(GetParam())), &tokenizer(), config);
  Collector c;
  const RequestId id = engine.add(score, c.sink());
  for (int i = 0; i < 3; ++i) engine.step();
  engine.retract_all();
  engine.replace_model(other_weights(GetParam()), Engine::InFlight::keep);
  run_all(engine);
  Engine plain(test_context(), other_weights(GetParam()), &tokenizer(), config);
  const Answer expected = run_one(plain, score);
  const Answer got = c.of(id);
  ASSERT_EQ(expected.prompt_logprobs.size(), 19u);
  ASSERT_EQ(got.prompt_logprobs.size(), 19u);
  for (size_t i = 0; i < 19; ++i)
    EXPECT_EQ(got.prompt_logprobs[i].chosen.logprob, expected.prompt_logprobs[i].chosen.logprob) << i;
}

TEST_P(Control, ReleasedMemoryComesBackEmpty) {
  Engine engine = make_engine(GetParam());
  const Answer expected = run_one(engine, scored(12));
  Collector c;
  engine.add(scored(12), c.sink());
  engine.step();
  EXPECT_THROW(engine.release_cache(), Error) << "a sequence runs";
  EXPECT_THROW(engine.drop_model(), Error);
  run_all(engine);
  engine.release_cache();
  engine.drop_model();
  EXPECT_FALSE(engine.has_model());
  EXPECT_GT(engine.limits().vocab, 0);
  const RequestId waits = engine.add(scored(12), c.sink());  // for the model
  engine.replace_model(load(fixture_folder(GetParam())), Engine::InFlight::keep);
  run_all(engine);
  expect_same(c.of(waits), expected);
  EXPECT_EQ(c.of(waits).last.usage.cached_tokens, 0);
}

std::unique_ptr<AsyncEngine> make_async() {
  return std::make_unique<AsyncEngine>(std::make_unique<Engine>(test_context(), load(fixture_folder("qwen3-moe")),
                                                                &tokenizer(), small({.max_queued = 2})));
}

TEST(AsyncControl, HeldRequestsWaitAndCanBeCancelled) {
  const auto engine = make_async();
  engine->hold(Hold::paused);
  EXPECT_TRUE(engine->held(Hold::paused));
  EXPECT_FALSE(engine->held(Hold::released));
  const auto kept = engine->submit(scored(12)), cancelled = engine->submit(scored(12));
  EXPECT_EQ(kept->next(milliseconds(100)), std::nullopt);
  EXPECT_THROW(engine->submit(scored(12)), Error) << "the queue is full";
  EXPECT_EQ(engine->stalled_seconds(), 0);
  cancelled->cancel();
  const auto last = cancelled->next(milliseconds(20000));
  ASSERT_TRUE(last);
  EXPECT_EQ(last->reason, FinishReason::cancelled);
  EXPECT_EQ(engine->metrics().steps, 0);
  engine->hold(Hold::released);
  engine->release(Hold::paused);
  EXPECT_EQ(kept->next(milliseconds(100)), std::nullopt) << "one reason is left";
  engine->release(Hold::released);
  std::vector<int32_t> tokens;
  while (!kept->done())
    if (const auto e = kept->next(milliseconds(20000))) tokens.insert(tokens.end(), e->tokens.begin(), e->tokens.end());
  Engine plain = make_engine("qwen3-moe");
  EXPECT_EQ(tokens, run_one(plain, scored(12)).tokens);
}

TEST(AsyncControl, NoStepRunsAfterHold) {
  std::unique_ptr<AsyncEngine> engine;
  std::unique_ptr<EventStream> stream;
  for (int attempt = 0; attempt < 100; ++attempt) {
    stream = nullptr;
    engine = make_async();
    stream = engine->submit(scored(500));
    ASSERT_TRUE(stream->next(milliseconds(60000)));
    engine->hold(Hold::paused);
    if (engine->metrics().finished_length == 0) break;  // else this thread was late: 500 tokens take some 30 ms
  }
  ASSERT_EQ(engine->metrics().finished_length, 0);
  const int64_t steps = engine->metrics().steps;
  std::this_thread::sleep_for(milliseconds(50));
  EXPECT_EQ(engine->metrics().steps, steps);
  EXPECT_FALSE(engine->drain(milliseconds(60000))) << "at once: nothing can finish";
  engine->stop();
}

TEST(AsyncControl, AnEmptyHeldEngineDrains) {
  const auto engine = make_async();
  engine->hold(Hold::paused);
  EXPECT_TRUE(engine->drain(milliseconds(60000)));
}

}  // namespace
}  // namespace sluice::engine
