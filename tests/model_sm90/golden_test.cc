// SPDX-License-Identifier: Apache-2.0
// Whole models on a GPU against transformers' float32 outputs of the trained checkpoints. Runs are BF16; the
// checkpoints' cards say how far transformers' own BF16 run is from its float32 one, and that is the unit of every
// bound here.
#include "model/generate.h"
#include "model/perplexity.h"
#include "tests/model/fixture.h"
#include "tests/ops_sm90/gpu.h"
#include "tests/support/test_name.h"

namespace sluice::model {
namespace {

class GoldenSm90 : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    SLUICE_SKIP_WITHOUT_DEVICE();
    SLUICE_SKIP_WITHOUT_MODELS();
    if (!std::ifstream(folder() + "/golden.safetensors")) GTEST_SKIP() << "there is no " << folder();
    gpu = std::make_unique<test::Gpu>();
    card = nlohmann::json::parse(std::ifstream(folder() + "/expected.json"));
  }
  std::string folder() const { return test::test_models() + "/" + GetParam(); }
  std::unique_ptr<Model> load(bool deterministic = false) {
    LoadOptions o;
    o.path = folder();
    o.deterministic = deterministic;
    return load_model(gpu->ctx, o);
  }
  double relative_of_a_bf16_run() const { return card["bf16_run_vs_float32"]["logits_rel_fro"]; }

  std::unique_ptr<test::Gpu> gpu;
  nlohmann::json card;
};

// One sequence in a runner of its own.
class Sequence {
 public:
  Sequence(Context& ctx, const Model& model, int64_t tokens) : runner_(ctx, model, config(tokens)), blocks_(kBlocks) {
    std::iota(blocks_.rbegin(), blocks_.rend(), 0);  // not in the order of memory
  }
  // Logits of all of `tokens`, the next ones of the sequence.
  std::vector<float> append(std::span<const int32_t> tokens) {
    const auto rows = static_cast<int64_t>(tokens.size()), vocab = runner_.model().info().vocab;
    runner_.clear();
    runner_.add({0, tokens, context_, blocks_, rows});
    runner_.run();
    context_ += rows;
    std::vector<float> logits(static_cast<size_t>(rows * vocab), NAN);
    runner_.read_logits(0, rows, logits.data());
    return logits;
  }

 private:
  static constexpr int64_t kBlocks = 40, kBlockSize = 16;
  static RunnerConfig config(int64_t tokens) {
    RunnerConfig c;
    c.cache.block_size = kBlockSize;
    c.cache.blocks = kBlocks;
    c.rows = tokens;
    c.sequence_tokens = kBlocks * kBlockSize;
    return c;
  }
  Runner runner_;
  std::vector<int32_t> blocks_;
  int64_t context_ = 0;
};

struct Distance {
  double relative = 0, agreement = 0;
};
Distance distance(std::span<const float> actual, std::span<const float> expected, size_t vocab) {
  double difference = 0, norm = 0;
  size_t same = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    difference += std::pow(static_cast<double>(actual[i]) - expected[i], 2);
    norm += std::pow(static_cast<double>(expected[i]), 2);
  }
  const auto width = static_cast<int64_t>(vocab);
  for (size_t at = 0; at < expected.size(); at += vocab)
    same += argmax(&actual[at], width) == argmax(&expected[at], width);
  return {std::sqrt(difference / norm), static_cast<double>(same * vocab) / static_cast<double>(expected.size())};
}

TEST_P(GoldenSm90, LogitsOfABfloat16Run) {
  const test::GoldenFile golden(folder() + "/golden.safetensors");
  const auto ids = golden.values<int32_t>("input_ids");
  const auto logits = golden.values<float>("logits");
  const auto n = static_cast<size_t>(golden.shape("input_ids")[1]);
  const auto model = load();
  const auto vocab = static_cast<size_t>(model->info().vocab);
  for (const size_t chunk : {n, size_t{17}, size_t{1}}) {
    std::vector<float> actual;
    for (size_t sequence = 0; sequence < 2; ++sequence) {
      Sequence run(gpu->ctx, *model, static_cast<int64_t>(chunk));
      for (size_t at = 0; at < n; at += chunk) {
        const auto rows = run.append(std::span(ids).subspan(sequence * n + at, std::min(chunk, n - at)));
        actual.insert(actual.end(), rows.begin(), rows.end());
      }
    }
    ASSERT_EQ(actual.size(), logits.size());
    const Distance d = distance(actual, logits, vocab);
    std::printf("    chunks of %zu: relative %.4f (card %.4f), first choice %.4f\n", chunk, d.relative,
                relative_of_a_bf16_run(), d.agreement);
    EXPECT_LE(d.relative, 1.5 * relative_of_a_bf16_run());
    EXPECT_GE(d.agreement, card["bf16_run_vs_float32"]["argmax_agreement"].get<double>() - 0.015);
  }
}

// The golden tokens one by one: wherever float32's margin is more than the rounding of a BF16 run, so is the choice.
TEST_P(GoldenSm90, GreedyTokens) {
  const test::GoldenFile golden(folder() + "/golden.safetensors");
  const auto prompt = golden.values<int32_t>("greedy.prompt_ids"),
             expected = golden.values<int32_t>("greedy.output_ids");
  auto ids = prompt;
  ids.insert(ids.end(), expected.begin(), expected.end() - 1);
  Context host{test::test_pool()};
  LoadOptions exact_options;
  exact_options.path = folder();
  exact_options.dtype = DType::f32;
  const auto exact_model = load_model(host, exact_options), model = load();
  const auto exact = Sequence(host, *exact_model, static_cast<int64_t>(ids.size())).append(ids);
  Sequence run(gpu->ctx, *model, static_cast<int64_t>(prompt.size()));
  const auto vocab = static_cast<size_t>(model->info().vocab);
  int judged = 0, same = 0;
  std::vector<float> row = run.append(prompt);
  row.erase(row.begin(), row.end() - static_cast<std::ptrdiff_t>(vocab));
  for (size_t i = 0; i < expected.size(); ++i) {
    const float* reference = &exact[(prompt.size() - 1 + i) * vocab];
    double norm = 0, runner_up = -INFINITY;
    for (size_t v = 0; v < vocab; ++v) {
      norm += static_cast<double>(reference[v]) * reference[v];
      if (static_cast<int32_t>(v) != expected[i]) runner_up = std::max<double>(runner_up, reference[v]);
    }
    // Four standard deviations of the difference of two logits whose errors are independent.
    const double error = relative_of_a_bf16_run() * std::sqrt(norm / static_cast<double>(vocab));
    const bool decided = reference[expected[i]] - runner_up > 4 * std::sqrt(2.0) * error;
    const bool equal = argmax(row.data(), static_cast<int64_t>(vocab)) == expected[i];
    judged += decided;
    same += equal;
    EXPECT_TRUE(equal || !decided) << "token " << i << ": margin " << reference[expected[i]] - runner_up;
    if (i + 1 < expected.size()) row = run.append({&expected[i], 1});
  }
  std::printf("    %d of %zu tokens are the golden ones; %d have a margin beyond the bound\n", same, expected.size(),
              judged);
  EXPECT_GE(judged, static_cast<int>(expected.size()) / 4);
}

TEST_P(GoldenSm90, PerplexityOfTheValidationText) {
  const test::GoldenFile golden(folder() + "/golden.safetensors");
  const auto ids = golden.values<int32_t>("valid.input_ids");
  const double exact = card["valid"]["ppl"], rounded = card["valid"]["ppl_of_a_bf16_run"];
  const Perplexity actual = perplexity(gpu->ctx, *load(), ids);
  std::printf("    %.6f (card: float32 %.6f, bfloat16 %.6f)\n", actual.value(), exact, rounded);
  EXPECT_EQ(actual.scored_tokens, card["valid"]["scored_tokens"]);
  EXPECT_NEAR(actual.value(), exact, std::max(2 * std::abs(rounded - exact), 5e-4 * exact));
}

// Drafts never change the text, and are accepted about as often as transformers'.
TEST_P(GoldenSm90, DraftsKeepTheText) {
  const auto model = load(true);
  if (!model->info().has_draft) GTEST_SKIP() << "no draft head";
  const test::GoldenFile golden(folder() + "/golden.safetensors");
  const auto prompt = golden.values<int32_t>("greedy.prompt_ids");
  GenerateOptions options;
  options.max_new_tokens = 48;
  const auto plain = Generator(gpu->ctx, *model, 256).run(prompt, options);
  for (const int steps : {1, 3}) {
    const Generated drafted = Generator(gpu->ctx, *model, 256, steps).run(prompt, options);
    EXPECT_EQ(drafted.ids, plain.ids) << steps << " drafts";
    std::printf("    %d drafts: %lld of %lld accepted\n", steps, static_cast<long long>(drafted.accepted),
                static_cast<long long>(drafted.drafted));
    // 32 of 47 by the card with one draft; the texts differ where margins are small.
    if (steps == 1) {
      EXPECT_GE(drafted.accept_rate(), 0.5);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, GoldenSm90, testing::Values("tiny-qwen3-moe", "tiny-nemotron-h", "tiny-deepseek-v3"),
                         test::kNamedByText);

}  // namespace
}  // namespace sluice::model
