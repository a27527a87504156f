// SPDX-License-Identifier: Apache-2.0
#include "engine/block_pool.h"

#include <gtest/gtest.h>

#include <list>
#include <map>
#include <random>

#include "engine/snapshots.h"
#include "tests/support/random.h"

namespace sluice::engine {
namespace {

// Names that fall into few buckets.
BlockHash name(uint64_t i) { return {i % 3, i}; }

// The same rules written with lists and maps.
struct NaivePool {
  std::list<int32_t> queue;
  std::map<int32_t, int> references;
  std::map<int32_t, uint64_t> names;
  explicit NaivePool(int32_t n) {
    for (int32_t i = 0; i < n; ++i) queue.push_back(i);
  }
  int32_t holder(uint64_t n) const {
    for (const auto& [block, held] : names)
      if (held == n) return block;
    return -1;
  }
};

// What is told of lost names, applied to the names that were given.
struct Told final : CacheListener {
  std::map<int32_t, uint64_t> names;
  void stored(int32_t, int64_t, int32_t) override { FAIL() << "the pool does not know of sequences"; }
  void removed(int32_t block) override { ASSERT_EQ(names.erase(block), 1U); }
  void cleared() override { names.clear(); }
};

TEST(BlockPool, BehavesAsTheNaiveOne) {
  std::mt19937 random = test::rng();
  BlockPool pool(7);
  Told told;
  pool.listen(&told);
  NaivePool naive(7);
  std::vector<int32_t> held;  // one entry per reference
  for (int step = 0; step < 50000; ++step) {
    switch (random() % 4) {
      case 0: {
        const auto block = pool.allocate();
        ASSERT_EQ(block.has_value(), !naive.queue.empty());
        if (!block) break;
        ASSERT_EQ(*block, naive.queue.front());
        naive.queue.pop_front();
        naive.names.erase(*block);
        naive.references[*block] = 1;
        held.push_back(*block);
        break;
      }
      case 1: {
        if (held.empty()) break;
        const size_t i = random() % held.size();
        const int32_t block = held[i];
        held.erase(held.begin() + static_cast<std::ptrdiff_t>(i));
        pool.release(block);
        if (--naive.references[block] > 0) break;
        if (naive.names.count(block) > 0)
          naive.queue.push_back(block);
        else
          naive.queue.push_front(block);
        break;
      }
      case 2: {
        if (held.empty()) break;
        const int32_t block = held[random() % held.size()];
        const uint64_t n = random() % 20;
        const bool is_new = naive.names.count(block) == 0 && naive.holder(n) < 0;
        ASSERT_EQ(pool.publish(block, name(n)), is_new);
        if (is_new) naive.names[block] = told.names[block] = n;
        break;
      }
      default: {
        const uint64_t n = random() % 20;
        const auto block = pool.find(name(n));
        ASSERT_EQ(block.value_or(-1), naive.holder(n));
        if (!block) break;
        pool.retain(*block);
        naive.queue.remove(*block);
        ++naive.references[*block];
        held.push_back(*block);
      }
    }
    if (random() % 1000 == 0) {
      pool.forget_names();
      naive.names.clear();
    }
    ASSERT_EQ(told.names, naive.names);
    ASSERT_EQ(pool.available(), static_cast<int32_t>(naive.queue.size()));
    int32_t cached = 0;
    for (const int32_t block : naive.queue) cached += naive.names.count(block) > 0 ? 1 : 0;
    ASSERT_EQ(pool.cached(), cached);
    for (const auto& [block, references] : naive.references) ASSERT_EQ(pool.references(block), references);
  }
}

TEST(Snapshots, TakesFreeOnesThenTheLeastRecentlyUsed) {
  Snapshots s(10, 2);
  EXPECT_FALSE(s.find(name(1)));
  ASSERT_EQ(s.reserve(), 10);
  ASSERT_EQ(s.reserve(), 11);
  EXPECT_FALSE(s.reserve()) << "both are reserved";
  s.keep(10, name(1));
  s.keep(11, name(2));
  EXPECT_EQ(s.find(name(1)), 10);  // now name 2 is the older one
  EXPECT_EQ(s.reserve(), 11);
  EXPECT_FALSE(s.contains(name(2)));
  s.drop(11);
  EXPECT_EQ(s.reserve(), 11) << "free before kept";
  s.keep(11, name(3));
  s.forget_names();
  EXPECT_FALSE(s.find(name(1)));
  EXPECT_FALSE(Snapshots(0, 0).reserve());
}

}  // namespace
}  // namespace sluice::engine
