// SPDX-License-Identifier: Apache-2.0
// One MoE layer of each trained checkpoint in float32 against Hugging Face: routed output from the layer's own input
// and router logits. The double-precision reference is held against the same numbers, so that it is no closed circle.
#include <gtest/gtest.h>

#include <cmath>

#include "moe/backends.h"
#include "tests/support/golden.h"
#include "tests/support/reference_moe.h"

namespace sluice::test {
namespace {

struct Layer {
  MoeSpec spec;
  weights::ExpertWeights weights;
  std::vector<float> input, logits, bias, output;
  int64_t tokens = 0;
};

weights::QuantTensor stack(const GoldenModel& model, const std::string& prefix, const std::string& name,
                           int64_t experts, int64_t rows, int64_t cols) {
  auto q = weights::make_quant_tensor(format::Format::bf16, experts, rows, cols);
  for (int64_t e = 0; e < experts; ++e) {
    const auto bits = model.values<uint16_t>(prefix + "experts." + std::to_string(e) + "." + name + ".weight");
    EXPECT_EQ(static_cast<int64_t>(bits.size()), rows * cols);
    std::copy(bits.begin(), bits.end(), q.codes.as<uint16_t>() + e * rows * cols);
  }
  return q;
}

Layer load(const std::string& name, const std::string& line, const std::string& module) {
  const GoldenModel model(name);
  const GoldenFile golden(test_models() + "/" + name + "/golden.safetensors");
  Layer l;
  l.spec = parse_moe_spec(line + " dtype=float32");
  const MoeSpec& s = l.spec;
  std::string prefix = module;
  prefix.replace(prefix.find('#'), 1, std::to_string(golden.values<int32_t>("moe.layer").at(0)));
  l.weights.up = stack(model, prefix, "up_proj", s.experts, s.inter, s.hidden);
  if (s.gated()) l.weights.gate = stack(model, prefix, "gate_proj", s.experts, s.inter, s.hidden);
  l.weights.down = stack(model, prefix, "down_proj", s.experts, s.hidden, s.inter);
  if (s.routing == routing::Method::deepseek_v3) l.bias = model.values<float>(prefix + "gate.e_score_correction_bias");
  l.input = golden.values<float>("moe.input");
  l.logits = golden.values<float>("moe.router_logits");
  l.output = golden.values<float>("moe.routed_output");
  l.tokens = static_cast<int64_t>(l.input.size()) / s.hidden;
  return l;
}

// Largest difference over the largest magnitude.
template <class T>
double distance(const std::vector<T>& got, const std::vector<float>& expected) {
  double difference = 0, magnitude = 0;
  EXPECT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    difference = std::max(difference, std::fabs(static_cast<double>(got[i]) - expected[i]));
    magnitude = std::max(magnitude, std::fabs(static_cast<double>(expected[i])));
    if (std::isnan(got[i])) return INFINITY;
  }
  return difference / magnitude;
}

void check(const std::string& name, const std::string& line, const std::string& module) {
  const Layer l = load(name, line, module);
  ThreadPool pool(2);
  Context ctx{pool};
  for (const auto& backend : moe::backends()) {
    if (!backend->supports(l.spec)) continue;
    const auto layer = backend->prepare(ctx, l.spec, l.weights);
    Tensor workspace(DType::u8, {layer->workspace_bytes(l.tokens)});
    std::vector<float> output(l.input.size(), NAN), weights(static_cast<size_t>(l.tokens * l.spec.top_k));
    std::vector<int32_t> ids(weights.size());
    moe::MoeArgs args;
    args.tokens = l.tokens;
    args.hidden = l.input.data();
    args.logits = l.logits.data();
    args.logits_dtype = DType::f32;
    args.bias = l.bias.empty() ? nullptr : l.bias.data();
    args.output = output.data();
    args.workspace = workspace.data();
    args.workspace_size = workspace.bytes();
    args.chosen_ids = ids.data();
    args.chosen_weights = weights.data();
    layer->run(ctx, args);
    const double from_golden = distance(output, l.output);
    const double reference = distance(reference_moe(l.spec, l.weights, l.input, ids, weights).output, l.output);
    std::printf("%s on %s: %.1e of the largest output; the double reference %.1e\n", name.c_str(),
                std::string(backend->name()).c_str(), from_golden, reference);
    EXPECT_LT(from_golden, 1e-5);
    EXPECT_LT(reference, 1e-5);
  }
}

TEST(HuggingFaceLayer, Qwen3Moe) {
  SLUICE_SKIP_WITHOUT_MODELS();
  check("tiny-qwen3-moe", "experts=32 top_k=4 hidden=256 inter=64", "model.layers.#.mlp.");
}

TEST(HuggingFaceLayer, DeepseekV3) {
  SLUICE_SKIP_WITHOUT_MODELS();
  check("tiny-deepseek-v3",
        "experts=32 top_k=4 hidden=192 inter=48 routing=deepseek_v3 groups=4 top_groups=2 routed_scale=2.5",
        "model.layers.#.mlp.");
}

TEST(HuggingFaceLayer, NemotronH) {
  SLUICE_SKIP_WITHOUT_MODELS();
  check("tiny-nemotron-h", "experts=16 top_k=4 hidden=256 inter=248 act=relu2 routing=deepseek_v3 routed_scale=2.5",
        "backbone.layers.#.mixer.");
}

}  // namespace
}  // namespace sluice::test
