// SPDX-License-Identifier: Apache-2.0
// The engine over models on a GPU that were loaded with deterministic: a request's tokens are those that it gets alone,
// whatever runs beside it and however the engine cuts, drops and finds again what it computes.
#include "engine/engine.h"

#include <random>

#include "gpu.h"
#include "tests/support/random.h"
#include "tests/support/test_name.h"

namespace sluice::engine {
namespace {

using model::Gpu;
using model::in_repository;

Request random_request(std::mt19937& random, int64_t vocab, int64_t longest, int64_t most_tokens) {
  Request r;
  r.prompt.resize(1 + random() % static_cast<uint64_t>(longest));
  for (int32_t& t : r.prompt) t = static_cast<int32_t>(random() % static_cast<uint64_t>(vocab));
  r.params.max_tokens = 1 + static_cast<int64_t>(random() % static_cast<uint64_t>(most_tokens));
  r.params.ignore_eos = true;
  r.params.sampling.temperature = random() % 2 == 0 ? 0.0 : 0.9;
  r.params.sampling.seed = random();
  return r;
}

struct EngineOnGpu : testing::TestWithParam<const char*> {
  static constexpr int kProbes = 6;

  void SetUp() override {
    SLUICE_SKIP_WITHOUT_DEVICE();
    gpu.emplace();
    model = model::load(gpu->ctx, GetParam(), true);
    gpu->poison(int64_t{256} << 20);
    random = test::rng();
    for (int i = 0; i < kProbes; ++i) {
      probes.push_back(random_request(random, model->info().vocab, 90, 1));
      probes.back().params.max_tokens = 24;
    }
    EngineConfig config = small();
    config.max_running = 1;
    config.prefix_cache = false;
    expected = answers(config, 0);
  }

  EngineConfig small() const {
    EngineConfig c;
    c.context_length = 160;
    c.max_running = 32;
    c.max_queued = 1024;
    return c;
  }

  // The tokens of the probes among `others` other requests, and asked again after them.
  std::vector<std::vector<int32_t>> answers(const EngineConfig& config, int others, int rounds = 1) {
    Engine engine(gpu->ctx, *model, nullptr, config);
    std::vector<std::vector<int32_t>> out;
    for (int round = 0; round < rounds; ++round) {
      std::vector<std::vector<int32_t>> tokens(probes.size());
      for (int i = 0; i < std::max(others, kProbes); ++i) {
        if (i < kProbes)
          engine.add(probes[static_cast<size_t>(i)], [&tokens, i](const engine::Event& e) {
            EXPECT_NE(e.reason, FinishReason::error) << e.error;
            auto& mine = tokens[static_cast<size_t>(i)];
            mine.insert(mine.end(), e.tokens.begin(), e.tokens.end());
          });
        if (i < others)
          engine.add(random_request(random, model->info().vocab, longest_prompt, longest_answer), [](const Event&) {});
        if (i % 16 == 15) engine.step();
      }
      while (engine.step()) {
      }
      if (round > 0) {
        EXPECT_EQ(tokens, out) << "in round " << round;
      }
      out = std::move(tokens);
    }
    metrics = engine.metrics();
    EXPECT_EQ(metrics.blocks_used, 0);
    EXPECT_EQ(metrics.finished_error, 0);
    return out;
  }

  std::optional<Gpu> gpu;
  std::unique_ptr<model::Model> model;
  std::mt19937 random;
  std::vector<Request> probes;
  std::vector<std::vector<int32_t>> expected;
  int64_t longest_prompt = 90, longest_answer = 40;  // of other requests
  Metrics metrics;
};

TEST_P(EngineOnGpu, ATextIsTheSameAlone) { EXPECT_EQ(answers(small(), 0), expected); }

TEST_P(EngineOnGpu, ATextIsTheSameAmong255Others) {
  EngineConfig config = small();
  config.max_running = 256;
  EXPECT_EQ(answers(config, 255 - kProbes + 1), expected);
  config.recording.enabled = false;
  EXPECT_EQ(answers(config, 60), expected) << "launched kernel by kernel";
}

TEST_P(EngineOnGpu, ATextIsTheSameInChunks) {
  EngineConfig config = small();
  for (const int64_t chunk : {7, 64, 65}) {
    config.prefill_chunk = chunk;
    EXPECT_EQ(answers(config, 20), expected) << "chunks of " << chunk;
  }
}

TEST_P(EngineOnGpu, ATextIsTheSameWithAWarmPrefix) {
  EngineConfig config = small();
  config.block_size = 16;
  EXPECT_EQ(answers(config, 10, 3), expected);
  EXPECT_GT(metrics.cached_tokens, 0);
}

TEST_P(EngineOnGpu, ATextIsTheSameAfterPreemptions) {
  EngineConfig config = small();
  config.block_size = 16;
  config.cache_tokens = 640;
  longest_prompt = 8;  // little is known when they are admitted
  longest_answer = 140;
  EXPECT_EQ(answers(config, 30), expected);
  EXPECT_GT(metrics.preemptions, 0);
}

TEST_P(EngineOnGpu, ATextIsTheSameWithDrafts) {
  if (!model->info().has_draft) GTEST_SKIP() << "no draft head";
  EngineConfig config = small();
  for (const int drafts : {1, 3})
    for (const bool adaptive : {false, true}) {
      config.speculative_steps = drafts;
      config.adaptive_drafts = adaptive;
      EXPECT_EQ(answers(config, 20), expected) << drafts << " drafts";
      EXPECT_TRUE(adaptive || metrics.drafted > 0);
    }
}

// Waiting for every token, and not: the same steps.
TEST_P(EngineOnGpu, ATextIsTheSameWithoutOverlap) {
  EngineConfig config = small();
  config.overlap = false;
  EXPECT_EQ(answers(config, 20), expected);
}

INSTANTIATE_TEST_SUITE_P(Models, EngineOnGpu, testing::Values("tiny-nemotron-h", "qwen3-moe", "deepseek-v3"),
                         test::kNamedByText);

// Weights that are NaN: the answers end with a sentence, and the engine goes on.
TEST(EngineOnGpuErrors, LogitsThatAreNanEndAnAnswer) {
  SLUICE_SKIP_WITHOUT_DEVICE();
  Gpu gpu;
  const io::TempDir dir;
  for (const char* file : {"config.json", "model.safetensors.index.json", "model-00001-of-00002.safetensors",
                           "model-00002-of-00002.safetensors"})
    dir.put(file, io::slurp(in_repository(std::string("models/tiny-nemotron-h/") + file)));
  const io::Checkpoint whole = io::Checkpoint::open(dir.path());
  const std::string name = "lm_head.weight";
  ASSERT_TRUE(whole.contains(name));
  Tensor broken = whole.tensor(name).clone();
  ASSERT_EQ(broken.dtype(), DType::bf16);
  broken.as<uint16_t>()[12345] = 0x7fc0;
  model::LoadOptions options;
  options.path = dir.path();
  const model::LiveModel live = model::load_live_model(gpu.ctx, options);
  const model::LiveModel bad = model::update_live_model(gpu.ctx, options, live, {{name, broken}});
  Engine engine(gpu.ctx, *bad.model, nullptr, {.context_length = 64, .max_running = 4});
  Request r;
  r.prompt = {5, 6, 7};
  r.params.max_tokens = 8;
  FinishReason reason = FinishReason::none;
  std::string error;
  const auto ask = [&] {
    reason = FinishReason::none;
    engine.add(r, [&](const Event& e) {
      reason = e.reason;
      error = e.error;
    });
    while (engine.step()) {
    }
  };
  ask();
  EXPECT_EQ(reason, FinishReason::error);
  EXPECT_FALSE(error.empty());
  EXPECT_EQ(engine.fault(), "") << "broken weights are no broken device";
  engine.replace_model(*live.model);
  ask();
  EXPECT_EQ(reason, FinishReason::length);
}

}  // namespace
}  // namespace sluice::engine
