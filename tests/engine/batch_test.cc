// SPDX-License-Identifier: Apache-2.0
// A request's tokens do not depend on what surrounds it: alone, among 32 others, in chunks, with a warm prefix cache,
// after pre-emptions. And alone they are those of model::Generator, which the goldens of Hugging Face are checked
// against.
#include <numeric>
#include <random>

#include "tests/engine/fixture.h"
#include "tests/support/random.h"
#include "tests/support/test_name.h"

namespace sluice::engine {
namespace {

struct Case {
  std::string folder;
  DType dtype = DType::f32;
};

std::vector<int32_t> random_tokens(std::mt19937& random, size_t n, int64_t vocab) {
  std::vector<int32_t> out(n);
  for (int32_t& t : out) t = static_cast<int32_t>(random() % static_cast<uint64_t>(vocab));
  return out;
}

std::vector<int32_t> plain(const model::Model& model, const Request& r) {
  Context ctx = test_context();
  model::GenerateOptions o;
  o.max_new_tokens = *r.params.max_tokens;
  o.sampling = r.params.sampling;
  return model::Generator(ctx, model, static_cast<int64_t>(r.prompt.size()) + o.max_new_tokens).run(r.prompt, o).ids;
}

// 33 requests of mixed lengths and samplings; some share long prefixes.
std::vector<Request> crowd(std::mt19937& random, int64_t vocab) {
  const auto system = random_tokens(random, 41, vocab);
  std::vector<Request> out;
  for (int i = 0; i < 33; ++i) {
    std::vector<int32_t> prompt = i % 3 == 0 ? std::vector<int32_t>() : system;
    const auto own = random_tokens(random, 1 + random() % 30, vocab);
    prompt.insert(prompt.end(), own.begin(), own.end());
    Request r = request(prompt, 10 + static_cast<int64_t>(random() % 40), i % 2 == 0 ? 0.0 : 0.9, random());
    if (i % 5 == 1) r.params.sampling.top_p = 0.8;
    if (i % 7 == 2) r.params.sampling.repetition_penalty = 1.3;
    if (i % 7 == 3) r.params.sampling.frequency_penalty = 0.7;
    out.push_back(r);
  }
  return out;
}

void expect_same_texts(const model::Model& model, const std::vector<Request>& requests, int steps) {
  std::vector<std::vector<int32_t>> expected;
  for (const Request& r : requests) expected.push_back(plain(model, r));
  const auto run = [&](const EngineConfig& config, const char* what, int rounds, Metrics* metrics = nullptr) {
    Engine engine(test_context(), model, nullptr, config);
    for (int round = 0; round < rounds; ++round) {
      Collector c;
      std::vector<RequestId> ids;
      // Not all at once: some arrive while others decode.
      for (size_t i = 0; i < requests.size(); ++i) {
        ids.push_back(engine.add(requests[i], c.sink()));
        if (i % 4 == 3) engine.step();
      }
      run_all(engine);
      for (size_t i = 0; i < requests.size(); ++i) {
        ASSERT_EQ(c.of(ids[i]).tokens, expected[i]) << what << ", request " << i << ", round " << round;
        ASSERT_EQ(c.of(ids[i]).reason(), FinishReason::length);
      }
    }
    if (metrics != nullptr) *metrics = engine.metrics();
  };
  EngineConfig config;
  config.context_length = 128;
  config.max_running = 33;
  config.block_size = 8;
  config.speculative_steps = steps;
  Metrics m;
  run(config, "all at once", 1);
  run(config, "warm", 2, &m);
  EXPECT_GT(m.cache_hit_rate(), 0.5) << "the second round finds the first one's blocks";
  config.prefill_chunk = 7;
  run(config, "chunks of 7", 2);
  config.prefix_cache = false;
  run(config, "chunks, no prefix cache", 1, &m);
  EXPECT_EQ(m.cached_tokens, 0);
  config.prefix_cache = true;
  config.max_running = 8;
  config.cache_tokens = 176;
  run(config, "little memory", 2, &m);
  EXPECT_GT(m.preemptions, 0);
  config.max_running = 1;
  run(config, "one after another", 1);
  EXPECT_EQ(m.drafted > 0, steps > 0);
}

class BatchIndependence : public testing::TestWithParam<Case> {};

TEST_P(BatchIndependence, SameTokensInAnyCompany) {
  std::mt19937 random = test::rng();
  const model::Model& model = load(fixture_folder(GetParam().folder), GetParam().dtype);
  expect_same_texts(model, crowd(random, model.info().vocab), 0);
  if (model.info().has_draft) expect_same_texts(model, crowd(random, model.info().vocab), 3);
}

TEST_P(BatchIndependence, GreedyTokensOfTheGolden) {
  if (GetParam().dtype != DType::f32) GTEST_SKIP() << "the goldens are float32";
  const test::GoldenFile golden(fixture_folder(GetParam().folder) + "/golden.safetensors");
  Engine engine(test_context(), load(fixture_folder(GetParam().folder)), nullptr, {});
  const auto expected = golden.values<int32_t>("greedy.output_ids");
  const Answer a =
      run_one(engine, request(golden.values<int32_t>("greedy.prompt_ids"), static_cast<int64_t>(expected.size())));
  EXPECT_EQ(a.tokens, expected);
}

INSTANTIATE_TEST_SUITE_P(Fixtures, BatchIndependence,
                         testing::Values(Case{"qwen3-moe"}, Case{"nemotron-h"}, Case{"deepseek-v3"},
                                         Case{"nemotron-h", DType::bf16}, Case{"deepseek-v3", DType::bf16}),
                         [](const auto& p) {
                           return test::test_name(p.param.folder + "_" + std::string(to_string(p.param.dtype)));
                         });

class Trained : public testing::TestWithParam<const char*> {};

// Hugging Face's greedy text, for every prompt that the golden has, with 32 others around.
TEST_P(Trained, GreedyTextAmongOthers) {
  SLUICE_SKIP_WITHOUT_MODELS();
  const std::string folder = test::test_models() + "/" + GetParam();
  const model::Model& model = load(folder);
  const test::GoldenFile golden(folder + "/golden.safetensors");
  const auto prompt = golden.values<int32_t>("greedy.prompt_ids"),
             expected = golden.values<int32_t>("greedy.output_ids");
  std::mt19937 random = test::rng();
  for (const int steps : {0, 3}) {
    if (steps > 0 && !model.info().has_draft) continue;
    EngineConfig config;
    config.context_length = 512;
    config.max_running = 33;
    config.prefill_chunk = 100;
    config.block_size = 16;
    config.speculative_steps = steps;
    Engine engine(test_context(), model, nullptr, config);
    Collector c;
    std::vector<RequestId> ids;
    for (const Request& r : crowd(random, model.info().vocab)) engine.add(r, c.sink());
    for (int i = 0; i < 2; ++i)
      ids.push_back(engine.add(request(prompt, static_cast<int64_t>(expected.size())), c.sink()));
    run_all(engine);
    ids.push_back(engine.add(request(prompt, static_cast<int64_t>(expected.size())), c.sink()));
    run_all(engine);
    for (const RequestId id : ids) EXPECT_EQ(c.of(id).tokens, expected);
    const Usage& u = c.of(ids.back()).last.usage;
    EXPECT_EQ(u.cached_tokens, (static_cast<int64_t>(prompt.size()) - 1) / 16 * 16);
    if (steps > 0)
      std::printf("    accept rate %.3f, length %.2f\n", engine.metrics().accept_rate(),
                  engine.metrics().accept_length());
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Trained, testing::Values("tiny-qwen3-moe", "tiny-nemotron-h", "tiny-deepseek-v3"),
                         test::kNamedByText);

}  // namespace
}  // namespace sluice::engine
