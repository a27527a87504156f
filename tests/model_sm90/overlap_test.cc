// SPDX-License-Identifier: Apache-2.0
// A step ahead of the host, on a GPU.
#include "tests/model/overlap.h"

#include "tests/model_sm90/gpu.h"

namespace sluice::model {
namespace {

TEST(OverlapOnGpu, GivesTheTextOfWaitingForEachToken) {
  SLUICE_SKIP_WITHOUT_DEVICE();
  Gpu gpu;
  for (const char* name : {"tiny-nemotron-h", "qwen3-moe", "deepseek-v3"})
    for (const bool deterministic : {true, false}) {
      SCOPED_TRACE(std::string(name) + (deterministic ? "" : ", not deterministic"));
      check_overlap(gpu.ctx, *load(gpu.ctx, name, deterministic));
    }
}

}  // namespace
}  // namespace sluice::model
