// SPDX-License-Identifier: Apache-2.0
#include "engine/async_engine.h"

#include <atomic>
#include <future>
#include <thread>

#include "tests/engine/fixture.h"

namespace sluice::engine {
namespace {

using std::chrono::milliseconds;
using Hold = AsyncEngine::Hold;

std::unique_ptr<AsyncEngine> make_async(EngineConfig config = {}) {
  config.cache_tokens = 8192;
  return std::make_unique<AsyncEngine>(
      std::make_unique<Engine>(test_context(), load(fixture_folder("qwen3-moe")), &tokenizer(), config));
}

Answer read(EventStream& stream, int choice = 0) {
  Answer a;
  while (!stream.done())
    if (const auto e = stream.next(milliseconds(20000)); e && e->choice == choice) {
      a.tokens.insert(a.tokens.end(), e->tokens.begin(), e->tokens.end());
      a.text += e->text;
      a.last = *e;
      ++a.events;
    } else if (!e && !stream.done()) {
      ADD_FAILURE() << "no event for 20 s";
      break;
    }
  return a;
}

const std::vector<int32_t> kPrompt{20, 45, 77, 101, 13};

// 900 tokens take 50 ms here. On a busy machine a test's thread may rest that long, so those that must do something
// before a request ends try again until they were in time.
constexpr int kAttempts = 100;

TEST(AsyncEngine, ManyThreadsGetTheTextsOfOne) {
  Engine plain(test_context(), load(fixture_folder("qwen3-moe")), &tokenizer(), {.cache_tokens = 4096});
  std::vector<Answer> expected;
  for (int i = 0; i < 24; ++i) expected.push_back(run_one(plain, request(kPrompt, 20, 1, static_cast<uint64_t>(i))));
  const auto engine = make_async({.max_running = 8});
  std::vector<std::thread> threads;
  for (int t = 0; t < 6; ++t)
    threads.emplace_back([&, t] {
      for (int i = t; i < 24; i += 6) {
        const auto stream = engine->submit(request(kPrompt, 20, 1, static_cast<uint64_t>(i)));
        if (i % 3 == 0) std::this_thread::sleep_for(milliseconds(30));  // a slow reader finds its events merged
        const Answer a = read(*stream);
        EXPECT_EQ(a.tokens, expected[static_cast<size_t>(i)].tokens);
        EXPECT_EQ(a.text, expected[static_cast<size_t>(i)].text);
        EXPECT_EQ(a.reason(), FinishReason::length);
      }
    });
  for (std::thread& t : threads) t.join();
  EXPECT_TRUE(engine->drain(milliseconds(60000)));
  const Metrics m = engine->metrics();
  EXPECT_EQ(m.finished_length, 24);
  EXPECT_EQ(m.blocks_used, 0);
  EXPECT_EQ(engine->stalled_seconds(), 0);
}

// What a reader of an event finds, who asks as soon as it has come.
TEST(AsyncEngine, AnAnswerIsCountedBeforeItsReaderHearsOfIt) {
  const auto engine = make_async();
  std::vector<Metrics> seen;  // by event
  std::promise<void> ended;
  const auto ask = [&](const Event& e) {
    seen.push_back(engine->metrics());
    if (e.reason != FinishReason::none) ended.set_value();
  };
  engine->submit(request(kPrompt, 5), ask);
  ended.get_future().wait();
  ASSERT_EQ(seen.size(), 5u);
  EXPECT_EQ(seen.front().running, 1);
  EXPECT_EQ(seen.front().queued + seen.front().waiting, 0);
  EXPECT_EQ(seen.back().running + seen.back().queued + seen.back().waiting, 0);
  EXPECT_EQ(seen.back().finished_length, 1);
  EXPECT_EQ(seen.back().blocks_used, 0);
  EXPECT_EQ(seen.back().longest_answers.count(), 1);

  // Requests that end before their first step, one of three choices at a time.
  seen.clear();
  ended = {};
  engine->hold(Hold::paused);
  std::atomic<int> open = 3;
  Request three = request(kPrompt, 5);
  three.params.n = 3;
  const RequestId id = engine->submit(std::move(three), [&](const Event&) {
    seen.push_back(engine->metrics());
    if (--open == 0) ended.set_value();
  });
  EXPECT_EQ(engine->metrics().queued, 3);
  EXPECT_EQ(engine->metrics().waiting, 3);
  engine->cancel(id);
  ended.get_future().wait();
  ASSERT_EQ(seen.size(), 3u);
  for (int64_t i = 0; i < 3; ++i) {
    EXPECT_EQ(seen[static_cast<size_t>(i)].queued, 2 - i);
    EXPECT_EQ(seen[static_cast<size_t>(i)].waiting, 2 - i);
    EXPECT_EQ(seen[static_cast<size_t>(i)].finished_cancelled, 1 + i);
  }
  engine->release(Hold::paused);
}

TEST(AsyncEngine, TimeLimitsActWhileTheEngineIsHeld) {
  const auto engine = make_async({.max_running = 1});
  Request runs = request(kPrompt, 900), waits = request(kPrompt, 3), both = waits;
  runs.timeout = both.timeout = 0.05;
  waits.queue_timeout = 0.05;
  engine->hold(Hold::paused);
  const auto waiting = engine->submit(waits), second = engine->submit(both),
             patient = engine->submit(request(kPrompt, 3));
  for (const auto& stream : {&waiting, &second}) {
    const Answer a = read(**stream);
    EXPECT_EQ(a.reason(), FinishReason::timed_out);
    EXPECT_NE(a.last.error.find("waited"), std::string::npos);
  }
  EXPECT_EQ(engine->metrics().waiting, 1);
  engine->release(Hold::paused);
  EXPECT_EQ(read(*patient).reason(), FinishReason::length);

  // One that runs keeps what it has. Its first step ends when the engine is held; on a busy machine its time may be
  // over before that step.
  for (int ms = 100;; ms *= 2) {
    ASSERT_LT(ms, 100000);
    runs.timeout = ms / 1000.0;
    Answer a;
    std::promise<void> first, ended;
    engine->submit(runs, [&](const Event& e) {
      a.tokens.insert(a.tokens.end(), e.tokens.begin(), e.tokens.end());
      a.last = e;
      if (a.events++ == 0) first.set_value();
      if (e.reason != FinishReason::none) return ended.set_value();
      while (!engine->held(Hold::paused)) std::this_thread::sleep_for(milliseconds(1));
    });
    first.get_future().wait();
    engine->hold(Hold::paused);
    ended.get_future().wait();
    engine->release(Hold::paused);
    if (a.reason() == FinishReason::timed_out) continue;
    EXPECT_EQ(a.reason(), FinishReason::cancelled);
    EXPECT_EQ(a.tokens.size(), 1u);
    EXPECT_EQ(engine->metrics().blocks_used, 0);
    return;
  }
}

TEST(AsyncEngine, DroppingAStreamCancels) {
  Metrics m;
  for (int attempt = 0; attempt < kAttempts && m.finished_cancelled == 0; ++attempt) {
    const auto engine = make_async();
    {
      const auto stream = engine->submit(request(kPrompt, 900));
      ASSERT_TRUE(stream->next(milliseconds(60000)));
    }
    EXPECT_TRUE(engine->drain(milliseconds(60000)));
    m = engine->metrics();
    EXPECT_EQ(m.blocks_used, 0);
    EXPECT_THROW(engine->submit(request(kPrompt, 1)), Error) << "drained";
  }
  EXPECT_EQ(m.finished_cancelled, 1);
  EXPECT_LT(m.generation_tokens, 900);
}

TEST(AsyncEngine, QueueIsBounded) {
  const auto engine = make_async({.max_running = 1, .max_queued = 2});
  // The engine's thread is kept busy while requests pile up.
  std::atomic<bool> go = false, inside = false;
  std::thread blocker([&] {
    engine->run([&](Engine&) {
      inside = true;
      while (!go) std::this_thread::yield();
    });
  });
  while (!inside) std::this_thread::yield();
  std::vector<std::unique_ptr<EventStream>> streams;
  for (int i = 0; i < 2; ++i) streams.push_back(engine->submit(request(kPrompt, 3)));
  try {
    engine->submit(request(kPrompt, 3));
    ADD_FAILURE();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::busy);
  }
  EXPECT_EQ(engine->metrics().requests_refused, 1);
  EXPECT_EQ(engine->metrics().waiting, 2);
  go = true;
  blocker.join();
  for (const auto& s : streams) EXPECT_EQ(read(*s).tokens.size(), 3u);
}

TEST(AsyncEngine, AGroupIsTakenWholeOrNotAtAll) {
  const auto engine = make_async({.max_running = 2, .max_queued = 3});
  std::atomic<int> ended = 0, failed = 0;
  const auto group = [&](size_t size, int64_t max_tokens) {
    const Sink sink = [&](const Event& e) {
      if (e.reason == FinishReason::none) return;
      (e.reason == FinishReason::length ? ended : failed)++;
    };
    return engine->submit(std::vector<Request>(size, request(kPrompt, max_tokens)), std::vector<Sink>(size, sink));
  };
  engine->hold(Hold::paused);                        // so that all of them wait until the others have been refused
  const std::vector<RequestId> ids = group(20, 50);  // more than max_queued, on an idle engine
  ASSERT_EQ(ids.size(), 20u);
  EXPECT_TRUE(std::is_sorted(ids.begin(), ids.end()));
  try {
    group(5, 3);
    ADD_FAILURE() << "while the first one waits";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::busy);
  }
  EXPECT_EQ(engine->metrics().requests_refused, 5);
  std::vector<Request> bad(3, request(kPrompt, 3));
  bad[2].prompt = {-1};
  EXPECT_THROW(engine->submit(bad, std::vector<Sink>(3, [](const Event&) {})), Error);
  engine->release(Hold::paused);
  EXPECT_TRUE(engine->drain(milliseconds(60000)));
  EXPECT_EQ(ended, 20);
  EXPECT_EQ(failed, 0);
  EXPECT_EQ(engine->metrics().requests, 20);
}

TEST(AsyncEngine, BadRequestsAreRefusedOnTheCallersThread) {
  const auto engine = make_async();
  Request r = request(kPrompt, 3);
  r.params.n = 0;
  EXPECT_THROW(engine->submit(r), Error);
  EXPECT_THROW(engine->run([](Engine&) { throw std::runtime_error("mine"); }), std::runtime_error);
  engine->run([](Engine& e) { e.flush_cache(); });
}

TEST(AsyncEngine, StoppingEndsEveryStream) {
  bool in_time = false;
  for (int attempt = 0; attempt < kAttempts && !in_time; ++attempt) {
    auto engine = make_async({.max_running = 2});
    std::vector<std::unique_ptr<EventStream>> streams;
    for (int i = 0; i < 5; ++i) streams.push_back(engine->submit(request(kPrompt, 900)));
    in_time = !engine->drain(milliseconds(20));
    engine->stop();
    for (const auto& s : streams) {
      const FinishReason reason = read(*s).reason();
      EXPECT_TRUE(reason == FinishReason::cancelled || reason == FinishReason::length);
      in_time = in_time && reason == FinishReason::cancelled;
    }
    EXPECT_THROW(engine->submit(request(kPrompt, 1)), Error);
    EXPECT_THROW(engine->run([](Engine&) {}), Error);
  }
  EXPECT_TRUE(in_time);
}

// What arrives while a job runs (a reload takes minutes) is answered although the engine stops right after that job.
TEST(AsyncEngine, StoppingAnswersWhatArrivedDuringASlowJob) {
  auto engine = make_async();
  std::promise<void> inside, go;
  auto slow = std::async(std::launch::async, [&] {
    engine->run([&](Engine&) {
      inside.set_value();
      go.get_future().wait();
    });
  });
  inside.get_future().wait();
  std::vector<std::unique_ptr<EventStream>> streams;
  streams.push_back(engine->submit(request(kPrompt, 900)));
  std::atomic<bool> ran = false;
  auto late = std::async(std::launch::async, [&] { engine->run([&](Engine&) { ran = true; }); });
  std::this_thread::sleep_for(milliseconds(50));  // time for it to be queued; refused at once otherwise, as it should
  auto stop = std::async(std::launch::async, [&] { engine->stop(); });
  for (std::string sentence; sentence.find("stopping") == std::string::npos;) try {
      streams.push_back(engine->submit(request(kPrompt, 900)));
      std::this_thread::sleep_for(milliseconds(5));
    } catch (const Error& e) {
      sentence = e.what();
    }
  go.set_value();
  stop.get();
  EXPECT_NO_THROW(slow.get());
  for (const auto& s : streams) EXPECT_EQ(read(*s).reason(), FinishReason::cancelled);
  EXPECT_EQ(engine->metrics().finished_cancelled, static_cast<int64_t>(streams.size()));
  EXPECT_EQ(engine->metrics().waiting, 0);
  const bool answered = late.wait_for(std::chrono::seconds(20)) == std::future_status::ready;
  EXPECT_TRUE(answered) << "the second job waits forever";
  if (!answered) {
    streams.clear();
    engine.reset();  // breaks its promise, so that this test ends
  }
  EXPECT_FALSE(ran);
  try {
    late.get();
    ADD_FAILURE();
  } catch (const std::exception& e) {
    EXPECT_STREQ(e.what(), "the engine is stopping");
  }
}

TEST(AsyncEngine, ChoicesArriveInOneStream) {
  const auto engine = make_async();
  Request r = request(kPrompt, 7, 1, 2);
  r.params.n = 3;
  const auto stream = engine->submit(r);
  std::map<int, size_t> tokens;
  while (!stream->done())
    if (const auto e = stream->next(milliseconds(20000))) tokens[e->choice] += e->tokens.size();
  EXPECT_EQ(tokens, (std::map<int, size_t>{{0, 7}, {1, 7}, {2, 7}}));
  EXPECT_FALSE(stream->next(milliseconds(0)));
}

}  // namespace
}  // namespace sluice::engine
