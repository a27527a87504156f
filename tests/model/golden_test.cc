// SPDX-License-Identifier: Apache-2.0
// transformers' float32 outputs: of the fixtures (tools/make_fixtures.py: odd sizes and rare options, always tested)
// and of the trained checkpoints, whose cards say how close is close.
#include "model/generate.h"
#include "model/perplexity.h"
#include "tests/model/fixture.h"
#include "tests/support/test_name.h"

namespace sluice::model {
namespace {

// Fixtures have no "tiny-" in their names.
std::string folder_of(const std::string& name) {
  return name.starts_with("tiny-") ? test::test_models() + "/" + name
                                   : std::string(SLUICE_SOURCE_DIR) + "/tests/fixtures/" + name;
}

class Golden : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (std::string(GetParam()).starts_with("tiny-")) SLUICE_SKIP_WITHOUT_MODELS();
  }
  std::string folder() const { return folder_of(GetParam()); }
};
class Trained : public Golden {};

TEST_P(Golden, LogitsLayersAndExperts) {
  const auto model = load(folder(), DType::f32);
  const test::GoldenFile golden(folder() + "/golden.safetensors");
  const auto ids = golden.values<int32_t>("input_ids");
  const auto n = static_cast<size_t>(golden.shape("input_ids")[1]);
  TestRunner runner(*model, 2);
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

  const Recorder::Moe& moe = seen.moe_layers.at(golden.values<int32_t>("moe.layer")[0]);
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
  const auto prompt = golden.values<int32_t>("greedy.prompt_ids"),
             expected = golden.values<int32_t>("greedy.output_ids");
  TestRunner runner(*model);
  const int64_t vocab = model->info().vocab;
  auto logits = runner.forward({{0, prompt}});
  std::vector<int32_t> output{argmax(logits.data() + (prompt.size() - 1) * vocab, vocab)};
  while (output.size() < expected.size()) {
    logits = runner.forward({{0, {output.back()}, static_cast<int64_t>(prompt.size() + output.size() - 1)}});
    output.push_back(argmax(logits.data(), vocab));
  }
  EXPECT_EQ(output, expected);
}

TEST_P(Trained, PerplexityOfTheValidationText) {
  const nlohmann::json expected = nlohmann::json::parse(std::ifstream(folder() + "/expected.json"));
  const test::GoldenFile golden(folder() + "/golden.safetensors");
  Context ctx = test_context();
  const auto ids = golden.values<int32_t>("valid.input_ids");
  const Perplexity exact = perplexity(ctx, *load(folder(), DType::f32), ids);
  EXPECT_EQ(exact.scored_tokens, expected["valid"]["scored_tokens"]);
  // Five digits.
  const double card = expected["valid"]["ppl"];
  EXPECT_NEAR(exact.value(), card, 0.5e-4 * std::pow(10, std::floor(std::log10(card))));
  // A BF16 run rounds at other places than transformers' own does; it may be off by as much as that one, twice.
  const double bf16_card = expected["valid"]["ppl_of_a_bf16_run"];
  const Perplexity rounded = perplexity(ctx, *load(folder(), DType::bf16), ids);
  EXPECT_NEAR(rounded.value(), card, 2 * std::abs(bf16_card - card));
  std::printf("    float32 %.6f (card %.6f), bfloat16 %.6f (card %.6f)\n", exact.value(), card, rounded.value(),
              bf16_card);
}

// A BF16 run stays as close to the float32 goldens as the card says of transformers' BF16 run.
TEST_P(Trained, Bfloat16Run) {
  const nlohmann::json expected = nlohmann::json::parse(std::ifstream(folder() + "/expected.json"));
  const test::GoldenFile golden(folder() + "/golden.safetensors");
  const auto ids = golden.values<int32_t>("input_ids");
  const auto logits = golden.values<float>("logits");
  const auto n = static_cast<size_t>(golden.shape("input_ids")[1]);
  const auto model = load(folder(), DType::bf16);
  TestRunner runner(*model, 2);
  const auto actual = runner.forward({{0, part(ids, 0, n)}, {1, part(ids, n, n)}});
  double difference = 0, norm = 0;
  int same = 0;
  const auto vocab = static_cast<size_t>(model->info().vocab);
  for (size_t t = 0; t < 2 * n; ++t) {
    for (size_t i = t * vocab; i < (t + 1) * vocab; ++i) {
      difference += std::pow(static_cast<double>(actual[i]) - logits[i], 2);
      norm += std::pow(static_cast<double>(logits[i]), 2);
    }
    same += argmax(actual.data() + t * vocab, static_cast<int64_t>(vocab)) ==
            argmax(logits.data() + t * vocab, static_cast<int64_t>(vocab));
  }
  const nlohmann::json& card = expected["bf16_run_vs_float32"];
  const double relative = std::sqrt(difference / norm), agreement = same / static_cast<double>(2 * n);
  std::printf("    relative %.4f (card %.4f), first choice %.4f (card %.4f)\n", relative,
              card["logits_rel_fro"].get<double>(), agreement, card["argmax_agreement"].get<double>());
  EXPECT_LE(relative, 1.5 * card["logits_rel_fro"].get<double>());
  EXPECT_GE(agreement, card["argmax_agreement"].get<double>() - 0.015);  // three of 192 near ties
}

constexpr auto kTrained = {"tiny-qwen3-moe", "tiny-nemotron-h", "tiny-deepseek-v3"};
INSTANTIATE_TEST_SUITE_P(Fixtures, Golden, testing::Values("qwen3-moe", "nemotron-h", "deepseek-v3"),
                         test::kNamedByText);
INSTANTIATE_TEST_SUITE_P(Models, Golden, testing::ValuesIn(kTrained), test::kNamedByText);
INSTANTIATE_TEST_SUITE_P(Models, Trained, testing::ValuesIn(kTrained), test::kNamedByText);

class GoldenDraft : public Golden {};

TEST_P(GoldenDraft, LogitsAndDrafts) {
  const auto model = load(folder(), DType::f32);
  const test::GoldenFile golden(folder() + "/golden.safetensors");
  const auto ids = golden.values<int32_t>("input_ids");
  const auto n = static_cast<size_t>(golden.shape("input_ids")[1]);
  TestRunner runner(*model, 2);
  runner.forward({{0, part(ids, 0, n)}, {1, part(ids, n, n)}});
  // The pair i of a sequence is (hidden[i], token[i + 1]); the last position has no next token.
  const auto pairs = static_cast<int64_t>(n) - 1;
  Tensor hidden(DType::f32, {2 * pairs, model->info().hidden});
  for (int64_t sequence = 0; sequence < 2; ++sequence) {
    const int64_t from = sequence * static_cast<int64_t>(n);
    const Tensor source = runner.hidden().rows(from, from + pairs);
    std::copy_n(source.as<float>(), source.elements(),
                hidden.rows(sequence * pairs, (sequence + 1) * pairs).as<float>());
  }
  const auto logits = runner.draft({{0, part(ids, 1, n - 1)}, {1, part(ids, n + 1, n - 1)}}, hidden);
  const auto vocab = static_cast<size_t>(model->info().vocab);
  expect_close(part(logits, 0, (n - 1) * vocab), golden.values<float>("mtp.logits"), 2e-4, 2e-4, "mtp.logits");
  const int64_t rows = static_cast<int64_t>(2 * (n - 1)), width = model->info().hidden;
  expect_close(to_floats({runner.hidden().data(), DType::f32, rows, width, width}), golden.values<float>("mtp.hidden"),
               2e-4, 2e-4, "mtp.hidden");
  const auto drafts = golden.values<int32_t>("mtp.draft_ids");
  for (size_t i = 0; i < drafts.size(); ++i)
    EXPECT_EQ(argmax(logits.data() + i * vocab, static_cast<int64_t>(vocab)), drafts[i]) << i;
}

INSTANTIATE_TEST_SUITE_P(All, GoldenDraft, testing::Values("deepseek-v3", "tiny-deepseek-v3"), test::kNamedByText);

TEST(GoldenDraftTrained, GreedyDrafts) {
  SLUICE_SKIP_WITHOUT_MODELS();
  const std::string folder = test::test_models() + "/tiny-deepseek-v3";
  const auto model = load(folder, DType::f32);
  const test::GoldenFile golden(folder + "/golden.safetensors");
  auto ids = golden.values<int32_t>("greedy.prompt_ids");
  const size_t prompt = ids.size();
  const auto output = golden.values<int32_t>("greedy.output_ids");
  ids.insert(ids.end(), output.begin(), output.end());
  TestRunner runner(*model);
  runner.forward({{0, part(ids, 0, ids.size() - 1)}});
  const auto hidden = runner.hidden();
  const auto logits = runner.draft({{0, part(ids, 1, ids.size() - 1)}}, hidden);
  const auto expected = golden.values<int32_t>("mtp.greedy_draft_ids");
  const auto vocab = static_cast<size_t>(model->info().vocab);
  for (size_t j = 0; j < expected.size(); ++j)
    EXPECT_EQ(argmax(logits.data() + (prompt - 1 + j) * vocab, static_cast<int64_t>(vocab)), expected[j]) << j;
}

}  // namespace
}  // namespace sluice::model
