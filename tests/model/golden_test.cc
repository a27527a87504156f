// SPDX-License-Identifier: Apache-2.0
// The trained checkpoints against transformers' outputs in float32 (shared/models cards; issue 2 section 4).
#include "tests/model/fixture.h"

namespace sluice::model {
namespace {

class Golden : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override { SLUICE_SKIP_WITHOUT_MODELS(); }
  std::string folder() const { return test::test_models() + "/" + GetParam(); }
};

TEST_P(Golden, LogitsLayersAndExperts) {
  const auto model = load(folder(), DType::f32);
  const test::GoldenFile golden(folder() + "/golden.safetensors");
  const auto ids = golden.values<int32_t>("input_ids");
  const auto n = static_cast<size_t>(golden.shape("input_ids")[1]);
  Runner runner(*model, 2);
  Recorder seen;
  // Both sequences in one batch.
  const auto logits = runner.forward({{0, part(ids, 0, n)}, {1, part(ids, n, n)}}, &seen);
  expect_close(logits, golden.values<float>("logits"), 2e-4, 2e-4, "logits");
  expect_close(to_floats({runner.hidden().data(), DType::f32, static_cast<int64_t>(2 * n), model->info().hidden,
                          model->info().hidden}),
               golden.values<float>("final_hidden"), 2e-4, 2e-4, "final_hidden");

  const auto rows = static_cast<size_t>(golden.shape("layer_hidden")[1] * golden.shape("layer_hidden")[2]);
  std::vector<float> hidden;
  for (const auto& [index, values] : seen.layers) hidden.insert(hidden.end(), values.begin(), values.begin() + rows);
  expect_close(hidden, golden.values<float>("layer_hidden"), 1e-4, 1e-4, "layer_hidden");

  const Recorder::Moe& moe = seen.mixtures.at(golden.values<int32_t>("moe.layer")[0]);
  const auto golden_ids = golden.values<int32_t>("moe.topk_ids");
  const auto golden_weights = golden.values<float>("moe.topk_weights");
  const auto top_k = static_cast<size_t>(golden.shape("moe.topk_ids")[2]);
  expect_close(moe.logits, golden.values<float>("moe.router_logits"), 1e-4, 1e-4, "router_logits");
  for (size_t t = 0; t < 2 * n; ++t) {
    std::map<int32_t, float> by_id;
    for (size_t k = 0; k < top_k; ++k) by_id[moe.ids[t * top_k + k]] = moe.weights[t * top_k + k];
    size_t k = 0;
    for (const auto& [id, weight] : by_id) {
      ASSERT_EQ(id, golden_ids[t * top_k + k]) << "token " << t;
      ASSERT_NEAR(weight, golden_weights[t * top_k + k], 1e-5) << "token " << t;
      ++k;
    }
    ASSERT_EQ(k, top_k);
  }
  // Relative to the tensor's norm: single elements cross zero.
  const auto routed = golden.values<float>("moe.routed_output"), output = golden.values<float>("moe.output");
  const auto relative = [](const std::vector<float>& a, const std::vector<float>& b) {
    double difference = 0, norm = 0;
    for (size_t i = 0; i < b.size(); ++i) {
      difference += (static_cast<double>(a[i]) - b[i]) * (static_cast<double>(a[i]) - b[i]);
      norm += static_cast<double>(b[i]) * b[i];
    }
    return std::sqrt(difference / norm);
  };
  ASSERT_EQ(moe.routed.size(), routed.size());
  EXPECT_LE(relative(moe.routed, routed), 1e-5);
  EXPECT_LE(relative(moe.output, output), 1e-5);
}

TEST_P(Golden, GreedyTokens) {
  const auto model = load(folder(), DType::f32);
  const test::GoldenFile golden(folder() + "/golden.safetensors");
  const auto prompt = golden.values<int32_t>("greedy.prompt_ids"), expected = golden.values<int32_t>("greedy.output_ids");
  Runner runner(*model);
  const int64_t vocab = model->info().vocab;
  auto logits = runner.forward({{0, prompt}});
  std::vector<int32_t> output{argmax(logits.data() + (prompt.size() - 1) * vocab, vocab)};
  while (output.size() < expected.size()) {
    logits = runner.forward({{0, {output.back()}, static_cast<int64_t>(prompt.size() + output.size() - 1)}});
    output.push_back(argmax(logits.data(), vocab));
  }
  EXPECT_EQ(output, expected);
}

INSTANTIATE_TEST_SUITE_P(Models, Golden, testing::Values("tiny-qwen3-moe", "tiny-nemotron-h", "tiny-deepseek-v3"),
                         [](const auto& p) {
                           std::string name = p.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace sluice::model
