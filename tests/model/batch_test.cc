// SPDX-License-Identifier: Apache-2.0
// What a step refuses before anything of it runs.
#include "model/batch.h"

#include <climits>

#include "tests/model/fixture.h"

namespace sluice::model {
namespace {

TEST(Batch, RefusesBlocksOutsideTheCacheWhereverTheyStand) {
  const auto model = load(std::string(SLUICE_SOURCE_DIR) + "/tests/fixtures/qwen3-moe", DType::f32);
  constexpr int64_t kBlocks = 37;
  const CacheConfig cache{kBlocks, 1, 1, 0};
  const StateTable states(1, cache.versions());
  BatchBuilder batch(test_context().device(), model->cache_shape(), cache,
                     {64, 1, kBlocks, model->info().vocab, model->info().max_positions});
  for (const int64_t length : {1, 2, 7, 16, 35, 37})
    for (int64_t at = 0; at < length; ++at)
      for (const int64_t block : std::initializer_list<int64_t>{0, kBlocks - 1, kBlocks, -1, INT32_MIN, INT32_MAX}) {
        std::vector<int32_t> blocks(static_cast<size_t>(length), 3);
        blocks[static_cast<size_t>(at)] = static_cast<int32_t>(block);
        const int32_t token = 5;
        const BatchSequence sequence{0, {&token, 1}, length - 1, blocks, 1};
        batch.clear();
        if (block >= 0 && block < kBlocks) {
          EXPECT_NO_THROW(batch.add(sequence, states));
          continue;
        }
        try {
          batch.add(sequence, states);
          ADD_FAILURE() << block << " at " << at << " of " << length;
        } catch (const Error& e) {
          EXPECT_EQ(std::string(e.what()), fmt::format("block {} is outside the cache's 37 blocks", block));
        }
        EXPECT_EQ(batch.rows(), 0);
      }
}

}  // namespace
}  // namespace sluice::model
