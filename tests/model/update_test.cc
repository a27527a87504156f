// SPDX-License-Identifier: Apache-2.0
// Tensors replaced in a model that is loaded, against the model of a checkpoint with those tensors.
#include <filesystem>
#include <random>

#include "io/safetensors_writer.h"
#include "tests/io/temp_dir.h"
#include "tests/model/fixture.h"
#include "tests/support/random.h"

namespace sluice::model {
namespace {

using Tensors = std::vector<std::pair<std::string, Tensor>>;

std::string folder_of(const std::string& name) { return std::string(SLUICE_SOURCE_DIR) + "/tests/fixtures/" + name; }

LoadOptions options(const std::string& folder, const std::string& quantization = "") {
  LoadOptions o;
  o.path = folder;
  o.quantization = quantization;
  return o;
}

std::vector<float> logits(const Model& model) {
  TestRunner run(model);
  return run.forward({{0, {1, 5, 9, 200, 33, 4, 8}, 0, false}});
}

// Of each name: a copy with every value halved (bfloat16 and float32 alike lose nothing by it).
Tensors halved(const io::Checkpoint& checkpoint, const std::vector<std::string>& names) {
  Tensors out;
  for (const std::string& name : names) {
    Tensor t = checkpoint.tensor(name).clone();
    for (int64_t i = 0; i < t.elements(); ++i) {
      if (t.dtype() == DType::f32) t.as<float>()[i] *= 0.5F;
      if (t.dtype() == DType::bf16) t.as<uint16_t>()[i] = float_to_bf16(bf16_to_float(t.as<uint16_t>()[i]) * 0.5F);
    }
    out.emplace_back(name, t);
  }
  return out;
}

class Update : public testing::TestWithParam<std::pair<const char*, const char*>> {};
INSTANTIATE_TEST_SUITE_P(Models, Update,
                         testing::Values(std::pair{"qwen3-moe", ""}, std::pair{"nemotron-h", ""},
                                         std::pair{"deepseek-v3", ""}, std::pair{"qwen3-moe", "fp8_channel"},
                                         std::pair{"qwen3-moe", "fp8"}, std::pair{"deepseek-v3", "fp8"}),
                         [](const auto& test) {
                           std::string name = std::string(test.param.first).substr(0, 5) + test.param.second;
                           return name;
                         });

// Each tensor in its turn, so that none is left out of what decides whether a module is made anew.
TEST_P(Update, EachTensorIsThatOfACheckpointWithIt) {
  const auto [name, quantization] = GetParam();
  Context ctx = test_context();
  const LoadOptions o = options(folder_of(name), quantization);
  LiveModel live = load_live_model(ctx, o);
  io::TempDir folder;
  for (const auto& file : std::filesystem::directory_iterator(o.path))
    if (file.path().extension() == ".json") std::filesystem::copy_file(file, folder / file.path().filename().string());
  std::vector<std::string> names = live.source.names();
  auto random = test::rng();
  std::shuffle(names.begin(), names.end(), random);
  names.resize(std::min<size_t>(names.size(), 12));
  std::vector<std::string> so_far;
  for (const std::string& tensor : names) {
    SCOPED_TRACE(tensor);
    const LiveModel before = std::move(live);
    live = update_live_model(ctx, o, before, halved(before.source, {tensor}));
    so_far.push_back(tensor);
    // The oracle: a file with all tensors as they are now.
    Tensors all;
    for (const std::string& each : live.source.names()) all.emplace_back(each, live.source.tensor(each));
    io::SafetensorsWriter(folder / "model.safetensors").write_all(all);
    EXPECT_EQ(logits(*live.model), logits(*load_model(ctx, options(folder.path().string(), quantization))));
  }
  std::sort(so_far.begin(), so_far.end());
  EXPECT_EQ(live.source.updated_names(), so_far);
}

TEST(UpdateModel, RefusesWhatTheCheckpointHasNot) {
  Context ctx = test_context();
  const LoadOptions o = options(folder_of("qwen3-moe"));
  const LiveModel live = load_live_model(ctx, o);
  const std::vector<float> before = logits(*live.model);
  const std::string name = "model.norm.weight";
  const Tensor good = live.source.tensor(name).clone();
  const auto refused = [&](const Tensors& tensors, const char* what) {
    try {
      update_live_model(ctx, o, live, tensors);
      ADD_FAILURE() << what;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument) << error.what();
      EXPECT_NE(std::string(error.what()).find(what), std::string::npos) << error.what();
    }
  };
  refused({{"model.nothing", good}}, "has no tensor");
  refused({{name, good}, {name, good}}, "given twice");
  refused({{name, Tensor(DType::f64, good.shape()).zero()}}, "is float64");
  refused({{name, good.reshape({1, good.elements()})}}, "has the shape");
  EXPECT_EQ(logits(*live.model), before);
}

}  // namespace
}  // namespace sluice::model
