// SPDX-License-Identifier: Apache-2.0
// In steps of few rows the norm after a layer of experts adds up their results; in long ones a kernel of its own does.
// A deterministic model gives the same logits both ways.
#include <numeric>

#include "gpu.h"
#include "kernels/sm90/tuning.h"
#include "model/runner.h"
#include "tests/support/random.h"
#include "tests/support/test_name.h"

namespace sluice::model {
namespace {

struct UnsummedExperts : testing::TestWithParam<const char*> {};

// Of all tokens, which are given `chunk` at a time.
std::vector<float> logits_of(Context& ctx, const Model& model, std::span<const int32_t> tokens, int64_t chunk) {
  const auto count = static_cast<int64_t>(tokens.size()), vocab = model.info().vocab;
  RunnerConfig config;
  config.cache.blocks = (count + config.cache.block_size - 1) / config.cache.block_size;
  config.rows = chunk;
  config.sequence_tokens = config.cache.blocks * config.cache.block_size;
  Runner runner(ctx, model, config);
  std::vector<int32_t> blocks(static_cast<size_t>(config.cache.blocks));
  std::iota(blocks.begin(), blocks.end(), 0);
  std::vector<float> logits(static_cast<size_t>(count * vocab), NAN);
  for (int64_t first = 0; first < count; first += chunk) {
    const int64_t rows = std::min(chunk, count - first);
    runner.clear();
    runner.add({.slot = 0,
                .tokens = tokens.subspan(static_cast<size_t>(first), static_cast<size_t>(rows)),
                .context = first,
                .blocks = blocks,
                .logit_rows = rows});
    runner.run();
    runner.read_logits(0, rows, &logits[static_cast<size_t>(first * vocab)]);
  }
  return logits;
}

TEST_P(UnsummedExperts, GiveTheLogitsOfLongSteps) {
  SLUICE_SKIP_WITHOUT_DEVICE();
  Gpu gpu;
  const auto model = load(gpu.ctx, GetParam(), true);
  gpu.poison(int64_t{256} << 20);
  auto random = test::rng();
  std::vector<int32_t> tokens(sm90::tuning::kFinalizeInNormTokens + 40);
  for (int32_t& t : tokens) t = static_cast<int32_t>(random() % static_cast<uint64_t>(model->info().vocab));
  const std::vector<float> expected = logits_of(gpu.ctx, *model, tokens, static_cast<int64_t>(tokens.size()));
  for (const int64_t chunk : {17, 300}) {
    const std::vector<float> actual = logits_of(gpu.ctx, *model, tokens, chunk);
    for (size_t i = 0; i < expected.size(); ++i)
      ASSERT_EQ(actual[i], expected[i]) << "value " << i << " of steps of " << chunk << " tokens";
  }
}

INSTANTIATE_TEST_SUITE_P(Models, UnsummedExperts, testing::Values("qwen3-moe", "nemotron-h", "deepseek-v3"),
                         test::kNamedByText);

}  // namespace
}  // namespace sluice::model
