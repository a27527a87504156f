// SPDX-License-Identifier: Apache-2.0
// Priorities, times that end a request, and who shares whose prefixes.
#include <thread>

#include "tests/engine/fixture.h"

namespace sluice::engine {
namespace {

Engine make_engine(EngineConfig config = {}, const char* name = "qwen3-moe") {
  config.cache_tokens = config.cache_tokens == 0 ? 2048 : config.cache_tokens;
  config.block_size = 4;
  return Engine(test_context(), load(fixture_folder(name)), &tokenizer(), config);
}

const std::vector<int32_t> kPrompt{20, 45, 77, 101, 13, 7, 8, 9, 10, 11, 12, 14, 15, 16, 17, 18, 19};

TEST(Order, LargerPrioritiesAreTakenUpFirst) {
  Engine engine = make_engine({.max_running = 1});
  std::vector<RequestId> order;
  const auto add = [&](int64_t priority) {
    Request r = request(kPrompt, 3);
    r.priority = priority;
    return engine.add(r, [&](const Event& e) {
      if (e.reason != FinishReason::none) order.push_back(e.request);
    });
  };
  const RequestId first = add(0);
  engine.step();  // runs already; nothing takes its place
  const RequestId low = add(-1), a = add(0), high = add(5), b = add(0), higher = add(6);
  run_all(engine);
  EXPECT_EQ(order, (std::vector<RequestId>{first, higher, high, a, b, low}));
}

// Without room the lowest priority gives its blocks back, whenever it came.
TEST(Order, TheLowestPriorityIsPreempted) {
  Engine engine = make_engine({.max_running = 2, .cache_tokens = 64});
  Collector c;
  Request low = request(kPrompt, 40), high = low;
  high.priority = 1;
  const RequestId one = engine.add(low, c.sink());
  for (int i = 0; i < 3; ++i) engine.step();
  const RequestId two = engine.add(high, c.sink());
  run_all(engine);
  EXPECT_GT(c.of(one).last.usage.preemptions, 0);
  EXPECT_EQ(c.of(two).last.usage.preemptions, 0);
  Engine plain = make_engine();
  EXPECT_EQ(c.of(one).tokens, run_one(plain, low).tokens);
}

TEST(Order, PrefixesAreSharedWithinASaltOnly) {
  for (const char* model : {"qwen3-moe", "nemotron-h"}) {
    Engine engine = make_engine({}, model);
    const auto cached = [&](const std::string& salt) {
      Request r = request(kPrompt, 4);
      r.cache_salt = salt;
      return run_one(engine, r).last.usage.cached_tokens;
    };
    for (const char* salt : {"", "a", "b", "\1", "aaaaaaaa", "aaaaaaaaa"}) EXPECT_EQ(cached(salt), 0) << salt;
    EXPECT_EQ(cached(std::string("a\0", 2)), 0) << "not the same as \"a\"";
    for (const char* salt : {"", "a", "b", "aaaaaaaa"}) EXPECT_EQ(cached(salt), 16) << salt;
  }
}

TEST(Order, TimesEndRequests) {
  for (int ms = 500;; ms *= 2) {
    Engine engine = make_engine({.max_running = 1});
    Collector c;
    Request runs = request(kPrompt, 1000), waits = request(kPrompt, 3), both = waits;
    runs.timeout = ms / 1000.0;
    waits.queue_timeout = 0.05;
    both.timeout = 0.05;
    const RequestId running = engine.add(runs, c.sink());
    engine.step();
    const RequestId waiting = engine.add(waits, c.sink()), second = engine.add(both, c.sink()),
                    patient = engine.add(request(kPrompt, 3), c.sink());
    std::this_thread::sleep_for(std::chrono::milliseconds(60));
    engine.step();
    // A busy machine: its time was over before the second step.
    if (ms < 30000 && c.of(running).reason() != FinishReason::none) continue;
    for (const RequestId id : {waiting, second}) {
      EXPECT_EQ(c.of(id).reason(), FinishReason::timed_out);
      EXPECT_NE(c.of(id).last.error.find("waited"), std::string::npos);
      EXPECT_TRUE(c.of(id).tokens.empty());
    }
    EXPECT_EQ(c.of(running).reason(), FinishReason::none);
    std::this_thread::sleep_for(std::chrono::milliseconds(ms));
    run_all(engine);
    EXPECT_EQ(c.of(running).reason(), FinishReason::cancelled);
    EXPECT_FALSE(c.of(running).tokens.empty());
    EXPECT_EQ(c.of(patient).reason(), FinishReason::length);
    return;
  }
}

TEST(Order, ABegunRequestHasNoQueueTimeout) {
  for (int ms = 20;; ms *= 2) {
    Engine engine = make_engine({.max_running = 1});
    Request r = request(kPrompt, 4);
    r.queue_timeout = ms / 1000.0;
    Collector c;
    const RequestId id = engine.add(r, c.sink());
    engine.step();
    if (ms < 5000 && c.of(id).reason() == FinishReason::timed_out) continue;  // a busy machine: it had not begun
    std::this_thread::sleep_for(std::chrono::milliseconds(ms + ms / 2));
    run_all(engine);
    EXPECT_EQ(c.of(id).reason(), FinishReason::length);
    return;
  }
}

}  // namespace
}  // namespace sluice::engine
