// SPDX-License-Identifier: Apache-2.0
// A mirror of the prefix cache that knows nothing but its events says how many tokens of a prompt are cached, and the
// engine reports how many it found.
#include <random>
#include <set>

#include "tests/engine/fixture.h"
#include "tests/support/random.h"

namespace sluice::engine {
namespace {

constexpr int64_t kBlock = 8;

class Mirror {
 public:
  CacheEventSink sink() {
    return [this](std::vector<CacheEvent> events) {
      EXPECT_FALSE(events.empty());
      for (const CacheEvent& e : events) apply(e);
    };
  }

  // Tokens of a prompt that can be taken from the cache: whole blocks, and at least one token is left to run.
  int64_t cached(const std::vector<int32_t>& prompt, const std::string& salt = "") const {
    std::vector<int32_t> path;
    int64_t found = 0;
    while (found + kBlock < static_cast<int64_t>(prompt.size())) {
      path.insert(path.end(), prompt.begin() + found, prompt.begin() + found + kBlock);
      const auto name = name_of_.find({salt, path});
      if (name == name_of_.end() || there_.count(name->second) == 0) break;
      found += kBlock;
    }
    return found;
  }
  const std::set<uint64_t>& blocks() const { return there_; }
  int stored = 0, removed = 0, cleared = 0;

 private:
  using Path = std::pair<std::string, std::vector<int32_t>>;  // salt, and all tokens up to the block's end

  void apply(const CacheEvent& e) {
    switch (e.kind) {
      case CacheEvent::Kind::stored: {
        ASSERT_EQ(e.tokens.size(), e.blocks.size() * kBlock);
        Path path{e.salt, {}};
        if (e.parent) path = path_of_.at(*e.parent);  // known, though it may be gone
        ASSERT_EQ(path.first, e.salt);
        for (size_t i = 0; i < e.blocks.size(); ++i) {
          const auto from = e.tokens.begin() + static_cast<std::ptrdiff_t>(i) * kBlock;
          path.second.insert(path.second.end(), from, from + kBlock);
          ASSERT_TRUE(there_.insert(e.blocks[i]).second) << "stored twice";
          ASSERT_EQ(name_of_.emplace(path, e.blocks[i]).first->second, e.blocks[i]) << "another name for equal tokens";
          ASSERT_EQ(path_of_.emplace(e.blocks[i], path).first->second, path) << "the same name for other tokens";
        }
        stored += static_cast<int>(e.blocks.size());
        break;
      }
      case CacheEvent::Kind::removed:
        for (const uint64_t block : e.blocks) ASSERT_EQ(there_.erase(block), 1U) << "removed, but not there";
        removed += static_cast<int>(e.blocks.size());
        break;
      case CacheEvent::Kind::cleared:
        there_.clear();
        ++cleared;
    }
  }

  std::map<Path, uint64_t> name_of_;
  std::map<uint64_t, Path> path_of_;
  std::set<uint64_t> there_;
};

EngineConfig small_cache() {
  EngineConfig config;
  config.context_length = 128;
  config.block_size = kBlock;
  config.cache_tokens = 30 * kBlock;
  config.max_running = 5;
  config.prefill_chunk = 24;
  return config;
}

// A beginning that others have too, and an end that few have.
std::vector<int32_t> random_prompt(std::mt19937& random) {
  std::vector<int32_t> prompt;
  const int32_t family = 5 + static_cast<int32_t>(random() % 3);
  const int64_t common = random() % 40, own = 1 + random() % 30;
  for (int64_t i = 0; i < common; ++i) prompt.push_back(family + static_cast<int32_t>(i % 7));
  for (int64_t i = 0; i < own; ++i) prompt.push_back(5 + static_cast<int32_t>(random() % 2));
  return prompt;
}

// Bursts that evict, pre-empt and are cancelled, flushes and replaced weights, and after each of these single requests
// whose hits the mirror predicts. At least 60 rounds, and then until enough of everything has happened to say that it
// was tested: hits are rare in a hybrid model, where 60 rounds gave from 10 to 40.
void run_randomly(const model::Model& model, EngineConfig config, bool exact) {
  std::mt19937 random = test::rng();
  Engine engine(test_context(), model, &tokenizer(), config);
  Mirror mirror;
  engine.publish_cache_events(mirror.sink());
  const std::vector<std::string> salts{"", "", "one", "another"};
  int64_t hits = 0;
  const auto seen_enough = [&] {
    return hits > 10 && mirror.stored > 100 && mirror.removed > 20 && mirror.cleared > 1;
  };
  for (int round = 0; round < 60 || (!seen_enough() && round < 600); ++round) {
    std::vector<RequestId> ids;
    for (auto left = random() % 8; left > 0; --left) {
      Request r = request(random_prompt(random), 1 + static_cast<int64_t>(random() % 40), 0);
      r.cache_salt = salts[random() % salts.size()];
      r.params.n = 1 + static_cast<int64_t>(random() % 2);
      ids.push_back(engine.add(r, [](const Event&) {}));
    }
    for (auto steps = random() % 30; steps > 0 && engine.step(); --steps) {
      if (random() % 20 == 0 && !ids.empty()) engine.cancel(ids[random() % ids.size()]);
      if (random() % 40 == 0) engine.retract_all();
      if (random() % 40 == 0) engine.flush_cache();
      if (random() % 60 == 0) engine.replace_model(model, Engine::InFlight::keep);
    }
    run_all(engine);
    for (int i = 0; i < 3; ++i) {
      Request r = request(random_prompt(random), 1 + static_cast<int64_t>(random() % 20), 0);
      r.cache_salt = salts[random() % salts.size()];
      const int64_t expected = mirror.cached(r.prompt, r.cache_salt);
      const int64_t got = run_one(engine, r).last.usage.cached_tokens;
      if (exact)
        ASSERT_EQ(got, expected);
      else
        ASSERT_LE(got, expected);  // a hybrid model needs a state as well, which events do not tell of
      hits += got > 0 ? 1 : 0;
    }
    if (random() % 10 == 0) {
      engine.flush_cache();
      ASSERT_TRUE(mirror.blocks().empty());
    }
    ASSERT_LE(static_cast<int64_t>(mirror.blocks().size()), 30);
  }
  EXPECT_TRUE(seen_enough()) << hits << " hits, " << mirror.stored << " stored, " << mirror.removed << " removed, "
                             << mirror.cleared << " cleared";
}

TEST(CacheEvents, AMirrorKnowsWhatIsCached) { run_randomly(load(fixture_folder("qwen3-moe")), small_cache(), true); }

TEST(CacheEvents, OfAHybridModelAndWithDrafts) {
  run_randomly(load(fixture_folder("nemotron-h")), small_cache(), false);
  EngineConfig config = small_cache();
  config.speculative_steps = 3;
  run_randomly(load(fixture_folder("deepseek-v3")), config, true);
}

TEST(CacheEvents, NamesAreEqualInEveryEngine) {
  std::vector<std::vector<CacheEvent>> told(2);
  for (auto& events : told) {
    Engine engine(test_context(), load(fixture_folder("qwen3-moe")), &tokenizer(), small_cache());
    engine.publish_cache_events(
        [&](std::vector<CacheEvent> batch) { events.insert(events.end(), batch.begin(), batch.end()); });
    Request r = request(std::vector<int32_t>(20, 7), 5);
    run_one(engine, r);
    r.cache_salt = "tenant";
    run_one(engine, r);
    engine.flush_cache();
  }
  // The prompt of 20 tokens is computed in one chunk, its answer completes no other block than the third.
  ASSERT_GE(told[0].size(), 3U);
  ASSERT_EQ(told[0].size(), told[1].size());
  for (size_t i = 0; i < told[0].size(); ++i) {
    EXPECT_EQ(told[0][i].kind, told[1][i].kind);
    EXPECT_EQ(told[0][i].blocks, told[1][i].blocks);
    EXPECT_EQ(told[0][i].parent, told[1][i].parent);
    EXPECT_EQ(told[0][i].tokens, told[1][i].tokens);
    EXPECT_EQ(told[0][i].salt, told[1][i].salt);
  }
  const CacheEvent& plain = told[0].front();
  EXPECT_EQ(plain.blocks.size(), 2U);
  EXPECT_FALSE(plain.parent);
  EXPECT_EQ(plain.tokens, std::vector<int32_t>(16, 7));
  EXPECT_NE(plain.blocks[0], plain.blocks[1]);
  EXPECT_EQ(told[0].back().kind, CacheEvent::Kind::cleared);
  const auto salted = std::find_if(told[0].begin(), told[0].end(), [](const auto& e) { return e.salt == "tenant"; });
  ASSERT_NE(salted, told[0].end());
  EXPECT_EQ(salted->tokens, plain.tokens);
  EXPECT_NE(salted->blocks, plain.blocks);
}

TEST(CacheEvents, OfWhatThrowsThePrefixesAway) {
  Engine engine(test_context(), load(fixture_folder("qwen3-moe")), &tokenizer(), small_cache());
  Mirror mirror;
  engine.publish_cache_events(mirror.sink());
  const Request r = request(std::vector<int32_t>(20, 7), 1);
  const auto fill = [&] {
    run_one(engine, r);
    EXPECT_EQ(mirror.blocks().size(), 2U);
  };
  fill();
  engine.flush_cache();
  EXPECT_TRUE(mirror.blocks().empty());
  fill();
  engine.replace_model(load(fixture_folder("qwen3-moe")));
  EXPECT_TRUE(mirror.blocks().empty());
  fill();
  engine.release_cache();
  EXPECT_TRUE(mirror.blocks().empty());
  fill();
}

TEST(CacheEvents, NeedAPrefixCacheAndBeginBeforeTheFirstRequest) {
  const model::Model& model = load(fixture_folder("qwen3-moe"));
  EngineConfig config = small_cache();
  config.prefix_cache = false;
  EXPECT_THROW(Engine(test_context(), model, &tokenizer(), config).publish_cache_events([](auto) {}), Error);
  Engine engine(test_context(), model, &tokenizer(), small_cache());
  run_one(engine, request({5, 6}, 1));
  EXPECT_THROW(engine.publish_cache_events([](auto) {}), Error);
}

}  // namespace
}  // namespace sluice::engine
