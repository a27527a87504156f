// SPDX-License-Identifier: Apache-2.0
// Whole models on a GPU whose steps are replayed from CUDA graphs, against launches one by one, bit for bit.
#include "tests/model/recorded_steps.h"

#include "tests/model_sm90/gpu.h"
#include "tests/support/test_name.h"

namespace sluice::model {
namespace {

struct Case {
  const char* model;
  bool deterministic;
  const char* quantization = "";
};

struct RecordedOnGpu : testing::TestWithParam<Case> {
  void SetUp() override {
    SLUICE_SKIP_WITHOUT_DEVICE();
    gpu.emplace();
    model = load(gpu->ctx, GetParam().model, GetParam().deterministic, GetParam().quantization);
    gpu->poison(int64_t{256} << 20);
  }
  std::optional<Gpu> gpu;
  std::unique_ptr<Model> model;
};

TEST_P(RecordedOnGpu, EverySize) { check_every_size(gpu->ctx, *model, 70); }
TEST_P(RecordedOnGpu, GrowingContexts) { check_growing_contexts(gpu->ctx, *model, 1056); }
TEST_P(RecordedOnGpu, Changes) {
  const Case& c = GetParam();
  const auto other = load(gpu->ctx, c.model, c.deterministic, *c.quantization != 0 ? "" : "fp8");
  check_changes(gpu->ctx, *model, *other);
}
INSTANTIATE_TEST_SUITE_P(Models, RecordedOnGpu,
                         testing::Values(Case{"tiny-nemotron-h", true}, Case{"tiny-nemotron-h", false},
                                         Case{"tiny-nemotron-h", true, "fp8_block"}, Case{"qwen3-moe", true},
                                         Case{"qwen3-moe", false}, Case{"qwen3-moe", true, "nvfp4_online"},
                                         Case{"deepseek-v3", true}),
                         [](const auto& p) {
                           std::string name = std::string(p.param.model) + (p.param.deterministic ? "" : "_fast");
                           if (*p.param.quantization != 0) name += std::string("_") + p.param.quantization;
                           return test::test_name(name);
                         });

TEST(RecordedDraftsOnGpu, AreVerified) {
  SLUICE_SKIP_WITHOUT_DEVICE();
  Gpu gpu;
  const auto model = load(gpu.ctx, "deepseek-v3", true);
  check_drafts(gpu.ctx, *model, 3);
}

}  // namespace
}  // namespace sluice::model
