// SPDX-License-Identifier: Apache-2.0
#include "tests/model/overlap.h"

#include "tests/model/fixture.h"

namespace sluice::model {
namespace {

TEST(Overlap, GivesTheTextOfWaitingForEachToken) {
  Context ctx = test_context();
  for (const char* name : {"qwen3-moe", "nemotron-h", "deepseek-v3"}) {
    SCOPED_TRACE(name);
    check_overlap(ctx, *load(std::string(SLUICE_SOURCE_DIR) + "/tests/fixtures/" + name, DType::bf16));
  }
}

}  // namespace
}  // namespace sluice::model
