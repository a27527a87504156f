// SPDX-License-Identifier: Apache-2.0
// Models of random weights that are made and quantised on the GPU, against the same models on the CPU.
#include <cmath>

#include "gpu.h"
#include "model/runner.h"
#include "tests/support/test_name.h"

namespace sluice::model {
namespace {

// A fixture's configuration with widths that every format has whole groups of in every linear layer.
std::string grouped_config_of(const std::string& family) {
  std::string text = io::slurp(in_repository("tests/fixtures/" + family + "/config.json"));
  const auto set = [&](const std::string& keys, int size) {
    text = std::regex_replace(text, std::regex("\"(" + keys + ")\": [0-9]+"), "\"$1\": " + std::to_string(size));
  };
  set("hidden_size|moe_latent_size|kv_lora_rank|q_lora_rank", 64);
  set("intermediate_size|moe_intermediate_size|moe_shared_expert_intermediate_size", 64);
  set("head_dim|mamba_head_dim|ssm_state_size|qk_nope_head_dim|qk_rope_head_dim|v_head_dim", 32);
  return text;
}

// Of the last of some tokens. Random routing chooses the same experts on every device.
std::vector<float> last_logits(Context& ctx, const io::TempDir& dir, const std::string& quantization) {
  LoadOptions o;
  o.path = dir.path();
  o.dummy = true;
  o.quantization = quantization;
  o.random_routing = true;
  const auto model = load_model(ctx, o);
  RunnerConfig config;
  config.cache.blocks = 1;
  config.sequence_tokens = config.rows = 24;
  Runner runner(ctx, *model, config);
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < 24; ++i) tokens.push_back(static_cast<int32_t>((i * 37 + 5) % model->info().vocab));
  const int32_t block = 0;
  runner.clear();
  runner.add({.tokens = tokens, .blocks = {&block, 1}, .logit_rows = 1});
  runner.run();
  std::vector<float> logits(static_cast<size_t>(model->info().vocab));
  runner.read_logits(0, 1, logits.data());
  return logits;
}

class DummySm90 : public testing::TestWithParam<const char*> {};

// The weights are the CPU's, bit for bit (DeviceStage's tests). What is left are sums in another order: a bfloat16
// differs by 2^-8 of itself, and one in some hundred of these falls to the other side of a coarser format's boundary, a
// third of itself at most (e2m1): below 2 % of the size for each rounding of rows, in at most 16 of them.
TEST_P(DummySm90, IsTheCpusModel) {
  SLUICE_SKIP_WITHOUT_DEVICE();
  Gpu gpu;
  Context cpu{.pool = gpu.pool};
  const io::TempDir dir;
  dir.put("config.json", grouped_config_of(GetParam()));
  for (const char* format : {"", "fp8", "fp8_channel", "fp8_block", "mxfp8", "nvfp4_online", "mxfp4"}) {
    const std::vector<float> a = last_logits(gpu.ctx, dir, format), b = last_logits(cpu, dir, format);
    EXPECT_EQ(a, last_logits(gpu.ctx, dir, format)) << format << ": not the same model again";
    double difference = 0, size = 0;
    for (size_t i = 0; i < a.size(); ++i) {
      difference += (a[i] - b[i]) * (a[i] - b[i]);
      size += b[i] * b[i];
    }
    EXPECT_LE(std::sqrt(difference / size), 1.0 / 8) << format;
  }
}

INSTANTIATE_TEST_SUITE_P(Families, DummySm90, testing::Values("qwen3-moe", "nemotron-h", "deepseek-v3"),
                         test::kNamedByText);

}  // namespace
}  // namespace sluice::model
