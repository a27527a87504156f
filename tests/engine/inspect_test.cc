// SPDX-License-Identifier: Apache-2.0
// The experts of every token and the spans of a step, against the model run by itself under an observer.
#include "engine/step_observer.h"

#include "model/runner.h"
#include "tests/engine/fixture.h"

namespace sluice::engine {
namespace {

const std::vector<int32_t> kPrompt{20, 45, 77, 101, 13, 7, 8, 9, 10, 11, 12, 14, 15, 16, 17, 18, 19};

struct Routes : model::Observer {
  std::map<int, std::vector<int32_t>> layers;
  void moe(const model::MoeView& view) override { layers[view.layer].assign(view.ids.begin(), view.ids.end()); }
};

// [tokens, layers, K] of all tokens in one pass.
std::vector<int32_t> expected_routes(const model::Model& model, const std::vector<int32_t>& tokens) {
  Context ctx = test_context();
  model::RunnerConfig config;
  config.cache = {.blocks = 64, .block_size = 4, .slots = 1};
  config.rows = config.sequence_tokens = 256;
  model::Runner runner(ctx, model, config);
  std::vector<int32_t> blocks(64);
  for (int32_t i = 0; i < 64; ++i) blocks[static_cast<size_t>(i)] = i;
  runner.clear();
  runner.add({0, tokens, 0, blocks, 0, false});
  Routes routes;
  runner.run(&routes);
  const size_t top_k = routes.layers.begin()->second.size() / tokens.size();
  const auto layers = static_cast<size_t>(model.info().layers);
  std::vector<int32_t> out(tokens.size() * layers * top_k, -1);
  for (const auto& [layer, ids] : routes.layers)
    for (size_t t = 0; t < tokens.size(); ++t)
      std::copy_n(ids.begin() + static_cast<std::ptrdiff_t>(t * top_k), top_k,
                  out.begin() + static_cast<std::ptrdiff_t>((t * layers + static_cast<size_t>(layer)) * top_k));
  return out;
}

Request routed(int64_t tokens, uint64_t seed = 1) {
  Request r = request(kPrompt, tokens, 0.8, seed);
  r.routed_experts = true;
  return r;
}

TEST(Inspect, RoutedExpertsAreThoseOfTheWholeText) {
  for (const char* name : {"qwen3-moe", "nemotron-h", "deepseek-v3"}) {
    const model::Model& model = load(fixture_folder(name));
    const int drafts = model.info().has_draft ? 2 : 0;
    // In chunks, beside another request, with the prompt in the prefix cache, after a pre-emption, with drafts.
    Engine engine(test_context(), model, &tokenizer(),
                  {.prefill_chunk = 7, .cache_tokens = 512, .block_size = 4, .speculative_steps = drafts});
    const Answer plain = run_one(engine, request(kPrompt, 12, 0.8, 1));
    EXPECT_TRUE(plain.last.routed_experts.empty());
    Collector c;
    const RequestId other = engine.add(request({5, 6, 7}, 20, 0.8, 2), c.sink());
    const RequestId id = engine.add(routed(12), c.sink());
    for (int i = 0; i < 5; ++i) engine.step();
    engine.retract_all();
    run_all(engine);
    EXPECT_EQ(c.of(id).tokens, plain.tokens) << name;
    EXPECT_EQ(c.of(id).last.usage.cached_tokens, 0);
    EXPECT_TRUE(c.of(other).last.routed_experts.empty());
    std::vector<int32_t> tokens = kPrompt;
    tokens.insert(tokens.end(), plain.tokens.begin(), plain.tokens.end() - 1);
    const std::vector<int32_t> expected = expected_routes(model, tokens);
    EXPECT_EQ(c.of(id).last.routed_experts, expected) << name;
    Request tail = routed(12);
    tail.routed_from = 5;
    const auto begin = expected.begin() + static_cast<std::ptrdiff_t>(5 * expected.size() / tokens.size());
    EXPECT_EQ(run_one(engine, tail).last.routed_experts, std::vector<int32_t>(begin, expected.end())) << name;
  }
}

TEST(Inspect, ExpertsAreCountedWhileRecording) {
  const model::Model& model = load(fixture_folder("qwen3-moe"));
  Engine engine(test_context(), model, &tokenizer(), {.cache_tokens = 512, .prefix_cache = false});
  run_one(engine, request(kPrompt, 4));
  EXPECT_EQ(engine.expert_counts().tokens, 0);
  engine.record_experts(true);
  const Answer answer = run_one(engine, request(kPrompt, 4));
  engine.record_experts(false);
  run_one(engine, request(kPrompt, 4));
  std::vector<int32_t> tokens = kPrompt;
  tokens.insert(tokens.end(), answer.tokens.begin(), answer.tokens.end() - 1);
  const std::vector<int32_t> routes = expected_routes(model, tokens);
  const ExpertCounts& counts = engine.expert_counts();
  EXPECT_EQ(counts.tokens, static_cast<int64_t>(tokens.size()));
  const auto layers = static_cast<size_t>(model.info().layers);
  ASSERT_EQ(counts.layers.size(), layers);
  const size_t top_k = routes.size() / tokens.size() / layers;
  std::vector<std::vector<int64_t>> expected(layers);
  for (size_t i = 0; i < routes.size(); ++i) {
    if (routes[i] < 0) continue;
    std::vector<int64_t>& layer = expected[i / top_k % layers];
    layer.resize(std::max(layer.size(), static_cast<size_t>(routes[i]) + 1));
    ++layer[static_cast<size_t>(routes[i])];
  }
  for (size_t l = 0; l < layers; ++l) {
    expected[l].resize(counts.layers[l].size());
    EXPECT_EQ(counts.layers[l], expected[l]) << l;
  }
}

TEST(Inspect, TracesCoverTheStep) {
  const model::Model& model = load(fixture_folder("qwen3-moe"));
  Engine engine(test_context(), model, &tokenizer(), {.cache_tokens = 512});
  std::vector<StepTrace> traces;
  engine.trace_steps(3, [&](const StepTrace& t) { traces.push_back(t); });
  run_one(engine, request(kPrompt, 8));
  ASSERT_EQ(traces.size(), 3u);
  EXPECT_EQ(traces[0].rows, static_cast<int64_t>(kPrompt.size()));
  EXPECT_EQ(traces[1].rows, 1);
  for (const StepTrace& t : traces) {
    const Span& step = t.spans.back();
    EXPECT_EQ(step.name, "step");
    int64_t layers = 0;
    for (const Span& s : t.spans) {
      EXPECT_LE(s.begin, s.end) << s.name;
      EXPECT_GE(s.begin, step.begin) << s.name;
      EXPECT_LE(s.end, step.end) << s.name;
      layers += s.name.starts_with("layer ") ? 1 : 0;
    }
    EXPECT_EQ(layers, model.info().layers);
  }
}

}  // namespace
}  // namespace sluice::engine
