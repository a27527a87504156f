// SPDX-License-Identifier: Apache-2.0
// Decoding allocates nothing: memory for an answer is taken when it starts.
#include "tests/engine/fixture.h"
#include "tests/support/counting_new.h"

namespace sluice::engine {
namespace {

TEST(Allocation, DecodingTakesNoMemory) {
  for (const char* folder : {"qwen3-moe", "nemotron-h", "deepseek-v3"})
    for (const bool speculative : {false, true}) {
      const model::Model& model = load(fixture_folder(folder));
      if (speculative && !model.info().has_draft) continue;
      EngineConfig config;
      config.context_length = 200;
      config.block_size = 16;
      config.speculative_steps = speculative ? 3 : 0;
      Engine engine(test_context(), model, &tokenizer(), config);
      for (int i = 0; i < 8; ++i) {
        Request r = request({5, 6, 7, 8 + i}, 150, i % 2, static_cast<uint64_t>(i));
        if (i == 3) r.params.stop = {"never seen anywhere"};
        engine.add(r, [](const Event&) {});
      }
      for (int i = 0; i < 12; ++i) engine.step();
      const int64_t before = allocations.load();
      ASSERT_GT(before, 0) << "the counter is not in use";
      for (int i = 0; i < 25; ++i) engine.step();
      EXPECT_EQ(allocations.load() - before, 0) << folder << (speculative ? ", speculative" : "");
      engine.cancel_all();
    }
}

}  // namespace
}  // namespace sluice::engine
