// SPDX-License-Identifier: Apache-2.0
// Models of random weights from a configuration alone: all families, stored and online formats, the draft head.
#include <fstream>
#include <regex>
#include <set>

#include "tests/io/temp_dir.h"
#include "tests/model/fixture.h"
#include "tests/support/test_name.h"

namespace sluice::model {
namespace {

// A fixture's configuration with widths that every format has whole groups of.
std::string config_of(const std::string& family) {
  std::ifstream in(std::string(SLUICE_SOURCE_DIR) + "/tests/fixtures/" + family + "/config.json");
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  return std::regex_replace(text, std::regex("\"(hidden_size|moe_latent_size)\": [0-9]+"), "\"$1\": 64");
}

std::unique_ptr<Model> load_dummy(const io::TempDir& dir, LoadOptions o = {}) {
  Context ctx = test_context();
  o.path = dir.path();
  o.dummy = true;
  return load_model(ctx, o);
}

// Logits of every position of a short prompt.
std::vector<float> logits_of(const Model& model, Observer* observer = nullptr) {
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < 24; ++i) tokens.push_back(static_cast<int32_t>((i * 37 + 5) % model.info().vocab));
  return TestRunner(model).forward({{.tokens = tokens}}, observer);
}

class Dummy : public testing::TestWithParam<const char*> {};

TEST_P(Dummy, RunsFromTheConfigurationAlone) {
  io::TempDir dir;
  dir.put("config.json", config_of(GetParam()));
  for (const DType dtype : {DType::f32, DType::bf16}) {
    LoadOptions o;
    o.dtype = dtype;
    const auto model = load_dummy(dir, o);
    Recorder recorder;
    const std::vector<float> logits = logits_of(*model, &recorder);
    double squares = 0;
    for (const float x : logits) {
      ASSERT_TRUE(std::isfinite(x));
      squares += static_cast<double>(x) * x;
    }
    // A normed row times rows of variance 1/hidden: about 1.
    const double variance = squares / static_cast<double>(logits.size());
    EXPECT_GT(variance, 0.5);
    EXPECT_LT(variance, 2.0);
    ASSERT_FALSE(recorder.moe_layers.empty());
    for (const auto& [layer, m] : recorder.moe_layers)
      EXPECT_GT(std::set<int32_t>(m.ids.begin(), m.ids.end()).size(), 4u) << "nearly all tokens chose the same experts";
    EXPECT_EQ(logits, logits_of(*load_dummy(dir, o))) << "not the same model again";
  }
}

TEST_P(Dummy, TakesEveryFormat) {
  io::TempDir dir;
  dir.put("config.json", config_of(GetParam()));
  for (const char* format : {"fp8", "fp8_channel", "fp8_block", "mxfp8", "nvfp4", "nvfp4_online", "mxfp4"}) {
    LoadOptions o;
    o.quantization = format;
    const auto model = load_dummy(dir, o);
    EXPECT_NE(model->info().experts.find("weights="), std::string::npos) << model->info().experts;
    for (const float x : logits_of(*model)) ASSERT_TRUE(std::isfinite(x)) << format;
  }
}

// The dummy weights are rounded to the format that a published checkpoint's config states.
TEST_P(Dummy, TakesTheFormatOfTheConfiguration) {
  struct Case {
    const char *quantization, *spec;
  };
  for (const Case& c : {Case{R"({"quant_method":"fp8","activation_scheme":"static"})", "weights=fp8_tensor"},
                        Case{R"({"quant_method":"fp8","weight_block_size":[128,128]})", "weights=fp8_block"},
                        Case{R"({"quant_method":"modelopt","quant_algo":"NVFP4"})", "weights=nvfp4"}}) {
    std::string config = config_of(GetParam());
    config.insert(config.find('{') + 1, std::string("\"quantization_config\":") + c.quantization + ",");
    io::TempDir dir;
    dir.put("config.json", config);
    const auto model = load_dummy(dir);
    EXPECT_NE(model->info().experts.find(c.spec), std::string::npos) << model->info().experts;
    for (const float x : logits_of(*model)) ASSERT_TRUE(std::isfinite(x)) << c.spec;
    LoadOptions online;
    online.quantization = "mxfp8";
    EXPECT_THROW(load_dummy(dir, online), Error);
  }
}

// With random routing a token's experts are distinct, each is chosen as often as any other, and weighs about as much,
// whatever the router, its bias and its groups say; and another layer chooses others.
TEST_P(Dummy, RandomRoutingSpreadsTokens) {
  io::TempDir dir;
  dir.put("config.json", config_of(GetParam()));
  LoadOptions o;
  o.random_routing = true;
  const auto model = load_dummy(dir, o);
  std::vector<int32_t> tokens(240, 3);
  Recorder recorder;
  TestRunner(*model).forward({{.tokens = tokens}}, &recorder);
  const MoeSpec spec = parse_moe_spec(model->info().experts);
  ASSERT_GT(recorder.moe_layers.size(), 0u);
  std::set<std::vector<int32_t>> choices;
  for (const auto& [layer, m] : recorder.moe_layers) {
    ASSERT_EQ(m.ids.size(), tokens.size() * static_cast<size_t>(spec.top_k));
    std::vector<double> counts(static_cast<size_t>(spec.experts));
    for (size_t t = 0; t < tokens.size(); ++t) {
      const auto k = static_cast<size_t>(spec.top_k);
      EXPECT_EQ(std::set<int32_t>(m.ids.begin() + t * k, m.ids.begin() + (t + 1) * k).size(), k);
      const auto [low, high] = std::minmax_element(m.weights.begin() + t * k, m.weights.begin() + (t + 1) * k);
      // Logits are between -1 and 1; sigmoids as well as exponentials of them differ by e^2 at most.
      EXPECT_LE(*high, *low * std::exp(2.0) * (1 + 0x1p-7)) << "layer " << layer;
    }
    for (const int32_t id : m.ids) ++counts[static_cast<size_t>(id)];
    const double p = static_cast<double>(spec.top_k) / spec.experts, mean = p * static_cast<double>(tokens.size());
    for (const double n : counts) EXPECT_NEAR(n, mean, 6 * std::sqrt(mean * (1 - p)) + 0.5) << "layer " << layer;
    choices.insert(m.ids);
  }
  EXPECT_EQ(choices.size(), recorder.moe_layers.size());
}

INSTANTIATE_TEST_SUITE_P(Families, Dummy, testing::Values("qwen3-moe", "nemotron-h", "deepseek-v3"),
                         test::kNamedByText);

TEST(DummyDraft, IsThereWhenTheConfigurationSaysSo) {
  io::TempDir dir;
  std::string config = config_of("deepseek-v3");
  dir.put("config.json", config);
  EXPECT_TRUE(load_dummy(dir)->info().has_draft);
  const std::string key = "\"num_nextn_predict_layers\": 1";
  ASSERT_NE(config.find(key), std::string::npos);
  dir.put("config.json", config.replace(config.find(key), key.size(), "\"num_nextn_predict_layers\": 0"));
  EXPECT_FALSE(load_dummy(dir)->info().has_draft);
}

// They are nobody's tensors: none can be read, and none stays in memory beside the model.
TEST(DummySource, HasNoTensors) {
  io::TempDir dir;
  dir.put("config.json", config_of("nemotron-h"));
  Context ctx = test_context();
  LoadOptions o;
  o.path = dir.path();
  o.dummy = true;
  const LiveModel live = load_live_model(ctx, o);
  EXPECT_EQ(live.source.bytes(), 0);
  EXPECT_TRUE(live.source.names().empty());
}

// The draft's experts can run elsewhere than the target's.
TEST(DraftBackend, FollowsTheTargetsUnlessNamed) {
  struct Case {
    const char *target, *draft, *refused;
  };
  const std::string folder = std::string(SLUICE_SOURCE_DIR) + "/tests/fixtures/deepseek-v3";
  // A name that no backend has shows which of the two was asked for it.
  for (const Case& c : {Case{"reference", "", nullptr}, Case{"cpu", "reference", nullptr},
                        Case{"auto", "nobody", "nobody"}, Case{"nobody", "cpu", "nobody"}}) {
    Context ctx = test_context();
    LoadOptions o;
    o.path = folder;
    o.moe_backend = c.target;
    o.draft_moe_backend = c.draft;
    if (c.refused == nullptr) {
      EXPECT_TRUE(load_model(ctx, o)->info().has_draft);
      continue;
    }
    try {
      load_model(ctx, o);
      ADD_FAILURE() << c.target << ", " << c.draft;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(c.refused), std::string::npos) << error.what();
    }
  }
  // A model without a draft has nothing to name a backend for: the name is not looked at.
  Context ctx = test_context();
  LoadOptions o;
  o.path = std::string(SLUICE_SOURCE_DIR) + "/tests/fixtures/qwen3-moe";
  o.draft_moe_backend = "reference";
  EXPECT_FALSE(load_model(ctx, o)->info().has_draft);
}

}  // namespace
}  // namespace sluice::model
