// SPDX-License-Identifier: Apache-2.0
// Errors of the device: memory that is missing ends one step's answers, a device that has failed ends all, and nobody
// waits in vain.
#include <atomic>
#include <thread>

#include "engine/async_engine.h"
#include "tests/engine/fixture.h"

namespace sluice::engine {
namespace {

using std::chrono::milliseconds;

// The host's queue until it has failed; then every wait says so, as after a kernel's fault.
class FailingQueue : public Queue {
 public:
  Device& device() const override { return host_device(); }
  void* stream() const override { return nullptr; }
  void copy(void* to, const void* from, int64_t bytes) override { host_queue().copy(to, from, bytes); }
  void zero(void* memory, int64_t bytes) override { host_queue().zero(memory, bytes); }
  void wait() override {
    if (failed) fail(ErrorCode::cuda, "work enqueued earlier failed on cuda:0: unspecified launch failure");
  }
  std::unique_ptr<sluice::Event> record() override { return host_queue().record(); }
  void wait_for(const sluice::Event& event) override { host_queue().wait_for(event); }
  std::unique_ptr<Graph> capture(const std::function<void()>&) override { return nullptr; }
  std::atomic<bool> failed = false;
};

// Another model's passes, of which those from `first_bad` on go wrong.
class FailingModel : public model::Model {
 public:
  FailingModel(const model::Model& m, FailingQueue& queue) : inner_(m), queue_(queue) {}
  const model::ModelInfo& info() const override { return inner_.info(); }
  const model::CacheShape& cache_shape() const override { return inner_.cache_shape(); }
  void forward(ops::Ops& ops, const model::Batch& batch, model::Cache& cache,
               const model::Outputs& out) const override {
    if (out_of_memory.exchange(false)) fail(ErrorCode::out_of_memory, "could not allocate 5 bytes on cuda:0");
    if (passes_left.fetch_sub(1) <= 0) queue_.failed = true;
    queue_.wait();
    inner_.forward(ops, batch, cache, out);
  }
  mutable std::atomic<bool> out_of_memory = false;
  mutable std::atomic<int> passes_left = 1 << 30;

 private:
  const model::Model& inner_;
  FailingQueue& queue_;
};

struct Fault : testing::Test {
  FailingQueue queue;
  FailingModel model{load(fixture_folder("qwen3-moe")), queue};
  Context ctx{.pool = test_pool(), .queue = queue};
};

TEST_F(Fault, MissingMemoryEndsTheAnswersOfOneStep) {
  Engine engine(ctx, model, nullptr, {.cache_tokens = 1024});
  const std::vector<int32_t> expected = run_one(engine, request({1, 2, 3}, 8)).tokens;
  ASSERT_EQ(expected.size(), 8u);
  model.out_of_memory = true;
  const Answer a = run_one(engine, request({1, 2, 3}, 8));
  EXPECT_EQ(a.reason(), FinishReason::error);
  EXPECT_EQ(a.last.error, "could not allocate 5 bytes on cuda:0");
  EXPECT_EQ(engine.fault(), "");
  EXPECT_EQ(run_one(engine, request({1, 2, 3}, 8)).tokens, expected);
}

TEST_F(Fault, ADeviceThatHasFailedEndsAllAnswers) {
  for (const bool overlap : {false, true}) {
    queue.failed = false;
    model.passes_left = 5;
    AsyncEngine engine(std::make_unique<Engine>(
        ctx, model, nullptr, EngineConfig{.max_running = 2, .cache_tokens = 1024, .overlap = overlap}));
    std::atomic<int> told = 0;
    engine.on_fault([&] { ++told; });
    std::vector<std::unique_ptr<EventStream>> streams;
    engine.hold(AsyncEngine::Hold::paused);
    for (int i = 0; i < 5; ++i) streams.push_back(engine.submit(request({1, 2, 3 + i}, 100)));  // three of them wait
    engine.release(AsyncEngine::Hold::paused);
    for (const auto& stream : streams) {
      std::optional<Event> last;
      while (!stream->done()) {
        auto event = stream->next(milliseconds(20000));
        ASSERT_TRUE(event) << "nothing came for 20 s";
        last = std::move(event);
      }
      ASSERT_TRUE(last);
      EXPECT_EQ(last->reason, FinishReason::error);
      EXPECT_NE(last->error.find("unspecified launch failure"), std::string::npos) << last->error;
    }
    EXPECT_TRUE(engine.drain(milliseconds(20000)));
    EXPECT_EQ(told, 1);
    EXPECT_NE(engine.fault().find("unspecified launch failure"), std::string::npos);
    engine.on_fault([&] { ++told; });
    EXPECT_EQ(told, 2) << "who asks later hears of it too";
  }
}

TEST_F(Fault, NewRequestsAreRefused) {
  model.passes_left = 0;
  AsyncEngine engine(std::make_unique<Engine>(ctx, model, nullptr, EngineConfig{.cache_tokens = 1024}));
  EXPECT_EQ(engine.submit(request({1}, 1))->next(milliseconds(20000))->reason, FinishReason::error);
  for (int i = 0; engine.fault().empty() && i < 2000; ++i) std::this_thread::sleep_for(milliseconds(5));
  try {
    engine.submit(request({1}, 1));
    FAIL() << "taken";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::cuda);
    EXPECT_NE(std::string(e.what()).find("the device has failed: "), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace sluice::engine
