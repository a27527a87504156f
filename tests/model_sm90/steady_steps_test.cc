// SPDX-License-Identifier: Apache-2.0
// Once a model has warmed up, a step takes no memory and waits for nothing: the host waits for tokens only, one step
// late. Counted by a device and a queue between the model and the GPU.
#include <numeric>

#include "gpu.h"
#include "model/runner.h"
#include "tests/support/test_name.h"

namespace sluice::model {
namespace {

struct Counts {
  int64_t allocations = 0, waits = 0, event_waits = 0;
  bool operator==(const Counts&) const = default;
};

class CountingDevice : public Device {
 public:
  CountingDevice(Device& device, Counts& counts) : device_(device), counts_(counts) {}
  DeviceId id() const override { return device_.id(); }
  DeviceMemory memory() override { return device_.memory(); }
  std::shared_ptr<void> allocate(int64_t bytes) override {
    ++counts_.allocations;
    return device_.allocate(bytes);
  }
  std::shared_ptr<void> allocate_staging(int64_t bytes) override {
    ++counts_.allocations;
    return device_.allocate_staging(bytes);
  }
  std::unique_ptr<Queue> make_queue() override { return device_.make_queue(); }

 private:
  Device& device_;
  Counts& counts_;
};

class CountingEvent : public Event {
 public:
  CountingEvent(std::unique_ptr<Event> event, Counts& counts) : event_(std::move(event)), counts_(counts) {}
  void wait() override {
    ++counts_.event_waits;
    event_->wait();
  }

 private:
  std::unique_ptr<Event> event_;
  Counts& counts_;
};

class CountingQueue : public Queue {
 public:
  CountingQueue(Queue& queue, Counts& counts) : queue_(queue), device_(queue.device(), counts), counts_(counts) {}
  Device& device() const override { return device_; }
  void* stream() const override { return queue_.stream(); }
  void copy(void* to, const void* from, int64_t bytes) override { queue_.copy(to, from, bytes); }
  void zero(void* memory, int64_t bytes) override { queue_.zero(memory, bytes); }
  void wait() override {
    ++counts_.waits;
    queue_.wait();
  }
  std::unique_ptr<Event> record() override { return std::make_unique<CountingEvent>(queue_.record(), counts_); }
  void wait_for(const Event& event) override { queue_.wait_for(event); }
  std::unique_ptr<Graph> capture(const std::function<void()>& enqueue) override { return queue_.capture(enqueue); }

 private:
  Queue& queue_;
  mutable CountingDevice device_;
  Counts& counts_;
};

struct SteadySteps : testing::TestWithParam<std::tuple<const char*, bool>> {};

TEST_P(SteadySteps, TakeNoMemoryAndWaitForTokensOnly) {
  SLUICE_SKIP_WITHOUT_DEVICE();
  const auto [name, recorded] = GetParam();
  Gpu gpu;
  const auto model = load(gpu.ctx, name, false);
  Counts counts;
  CountingQueue queue(*gpu.queue, counts);
  Context ctx{.pool = gpu.pool, .queue = queue};

  constexpr int kSequences = 9, kWarmUp = 6, kSteps = 40;
  RunnerConfig config;
  const int64_t each = 3;  // blocks
  config.cache.blocks = each * kSequences;
  config.cache.slots = kSequences;
  config.rows = 64;
  config.sequences = kSequences;
  config.sequence_tokens = each * config.cache.block_size;
  config.recording.enabled = recorded;
  Runner runner(ctx, *model, config);
  std::vector<int32_t> blocks(static_cast<size_t>(each * kSequences));
  std::iota(blocks.begin(), blocks.end(), 0);
  std::vector<sampling::SampleRow> rows(kSequences);
  for (int i = 0; i < kSequences; ++i) rows[static_cast<size_t>(i)] = {.logits = i, .temperature = 0.8};
  std::vector<sampling::Sampled> sampled(kSequences);
  const auto blocks_of = [&](int i) {
    return std::span(blocks).subspan(static_cast<size_t>(i * each), static_cast<size_t>(each));
  };
  const std::vector<int32_t> prompt{5, 9, 17, 33};
  runner.clear();
  for (int i = 0; i < kSequences; ++i)
    runner.add({.slot = i, .tokens = prompt, .blocks = blocks_of(i), .logit_rows = 1});
  runner.run();
  runner.begin_sample({rows, {}});

  int64_t context = static_cast<int64_t>(prompt.size());
  Counts before;
  for (int step = 0; step < kWarmUp + kSteps; ++step) {
    if (step == kWarmUp) before = counts;
    const Counts at_begin = counts;
    runner.clear();
    for (int i = 0; i < kSequences; ++i) {
      const int32_t unknown = 0;
      runner.add({.slot = i,
                  .tokens = {&unknown, 1},
                  .context = context,
                  .blocks = blocks_of(i),
                  .logit_rows = 1,
                  .sampled = i});
    }
    ++context;
    runner.run();
    for (auto& row : rows) row.position = context;
    runner.begin_sample({rows, {}});
    if (step >= kWarmUp) {
      EXPECT_EQ(counts.waits, at_begin.waits) << "in step " << step;
      // For the integers of two steps ago, whose tokens the host has already.
      EXPECT_LE(counts.event_waits - at_begin.event_waits, 1) << "in step " << step;
    }
    runner.end_sample(sampled);  // of the step before
    for (const auto& s : sampled) ASSERT_GE(s.token, 0);
  }
  runner.end_sample(sampled);
  EXPECT_EQ(counts.allocations, before.allocations);
  EXPECT_EQ(counts.waits, before.waits);
  EXPECT_EQ(runner.recorded_steps() > 0, recorded);
}

INSTANTIATE_TEST_SUITE_P(Models, SteadySteps,
                         testing::Combine(testing::Values("tiny-nemotron-h", "qwen3-moe", "deepseek-v3"),
                                          testing::Bool()),
                         [](const auto& p) {
                           std::string name =
                               std::string(std::get<0>(p.param)) + (std::get<1>(p.param) ? "_recorded" : "_launched");
                           return test::test_name(name);
                         });

}  // namespace
}  // namespace sluice::model
