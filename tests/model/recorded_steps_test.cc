// SPDX-License-Identifier: Apache-2.0
// Which steps are recorded, when recordings are made and dropped, and whole models whose steps are replayed, with a
// queue that records functions of the host. tests/model_sm90 does the same on a GPU.
#include "tests/model/recorded_steps.h"

#include "tests/model/fixture.h"
#include "tests/support/test_name.h"

namespace sluice::model {
namespace {

// Runs work at once, as the host's queue does, and keeps what it records to call it again.
class HostRecorder : public Queue {
 public:
  Device& device() const override { return host_device(); }
  void* stream() const override { return nullptr; }
  void copy(void* to, const void* from, int64_t bytes) override { host_queue().copy(to, from, bytes); }
  void zero(void* memory, int64_t bytes) override { host_queue().zero(memory, bytes); }
  void wait() override { ++waits; }
  std::unique_ptr<Event> record() override { return host_queue().record(); }
  void wait_for(const Event& event) override { host_queue().wait_for(event); }
  std::unique_ptr<Graph> capture(const std::function<void()>& enqueue) override {
    struct Recording : Graph {
      std::function<void()> work;
      void launch() override { work(); }
    };
    ++recorded;
    auto graph = std::make_unique<Recording>();
    graph->work = enqueue;
    return graph;
  }
  int recorded = 0, waits = 0;
};

struct Recorded : testing::Test {
  HostRecorder queue;
  Context ctx{.pool = test_pool(), .queue = queue};
};

TEST(RecordedSizes, AreFewAndClose) {
  EXPECT_EQ(padded_sequences(1, 1000), 1);
  EXPECT_EQ(padded_sequences(2, 1000), 2);
  EXPECT_EQ(padded_sequences(3, 1000), 4);
  EXPECT_EQ(padded_sequences(5, 1000), 8);
  EXPECT_EQ(padded_sequences(64, 1000), 64);
  EXPECT_EQ(padded_sequences(65, 1000), 80);
  EXPECT_EQ(padded_sequences(257, 1000), 320);
  EXPECT_EQ(padded_sequences(33, 35), 35) << "no more than a step may hold";
  std::set<int64_t> sizes;
  for (int64_t n = 1; n <= 256; ++n) {
    const int64_t padded = padded_sequences(n, 1000);
    EXPECT_GE(padded, n);
    EXPECT_LT(padded - n, n <= 64 ? 8 : 16);
    EXPECT_EQ(padded_sequences(padded, 1000), padded);
    EXPECT_LE(padded_sequences(n, 256), 256);
    sizes.insert(padded);
  }
  EXPECT_EQ(sizes.size(), 23u);
}

TEST(RecordedSizes, OfContextsArePowersOfTwo) {
  EXPECT_EQ(padded_context(1, 4096), 256);
  EXPECT_EQ(padded_context(256, 4096), 256);
  EXPECT_EQ(padded_context(257, 4096), 512);
  EXPECT_EQ(padded_context(513, 4096), 1024);
  EXPECT_EQ(padded_context(3000, 4000), 4000) << "no more than a sequence may hold";
  EXPECT_EQ(padded_context(100, 200), 200);
  EXPECT_EQ(padded_context(5000, 4000), 5000);
}

TEST_F(Recorded, OnlyStepsOfEqualFewRowsWhoseLogitsAreAllWanted) {
  const auto ops = ops::make_ops(ctx);
  const RecordedSteps steps(*ops, {.max_sequences = 48},
                            {.sequences = 60, .rows = 150, .rows_each = 3, .sequence_tokens = 3000});
  const auto shape = [&](int64_t sequences, int64_t rows, int64_t longest, int64_t logits) {
    ops::Batch b;
    b.sequences = sequences, b.rows = rows, b.longest_rows = longest, b.logit_rows = logits, b.longest_context = 700;
    return steps.shape_of(b);
  };
  EXPECT_EQ(shape(5, 5, 1, 5), (StepShape{8, 1, 1024}));
  EXPECT_EQ(shape(5, 15, 3, 15), (StepShape{8, 3, 1024}));
  EXPECT_EQ(shape(45, 135, 3, 135), (StepShape{48, 3, 1024}));
  EXPECT_EQ(shape(48, 48, 1, 48), (StepShape{48, 1, 1024}));
  EXPECT_FALSE(shape(49, 49, 1, 49)) << "more than max_sequences";
  EXPECT_FALSE(shape(0, 0, 0, 0));
  EXPECT_FALSE(shape(5, 6, 2, 6)) << "of several lengths";
  EXPECT_FALSE(shape(5, 5, 1, 4)) << "a prompt goes on";
  EXPECT_FALSE(shape(1, 4, 4, 4)) << "a prompt";
  const RecordedSteps off(*ops, {.enabled = false}, {60, 150, 3, 3000});
  ops::Batch one;
  one.sequences = one.rows = one.longest_rows = one.logit_rows = 1;
  EXPECT_FALSE(off.shape_of(one));
}

TEST_F(Recorded, TheSecondStepOfAShapeIsRecorded) {
  const auto ops = ops::make_ops(ctx);
  RecordedSteps steps(*ops, {}, {8, 8, 1, 100});
  int launched = 0, brought = 0;
  bool replays = true;
  const auto bring = [&](bool r) {
    EXPECT_EQ(launched, brought++) << "before the step";
    replays = r;
  };
  const auto step = [&](int64_t n) { steps.run({n, 1, 512}, bring, [&] { ++launched; }); };
  step(1);
  EXPECT_EQ(queue.recorded, 0);
  EXPECT_FALSE(replays);
  step(1);
  EXPECT_EQ(queue.recorded, 1);
  EXPECT_TRUE(replays);
  step(1), step(2), step(2), step(1);
  EXPECT_EQ(queue.recorded, 2);
  EXPECT_EQ(launched, 6);
  EXPECT_EQ(brought, 6);
  EXPECT_EQ(steps.recorded(), 2);
  const int waits = queue.waits;
  steps.clear();
  EXPECT_GT(queue.waits, waits) << "a recording may be running";
  EXPECT_EQ(steps.recorded(), 0);
  step(2);  // the workspace is large enough
  EXPECT_EQ(queue.recorded, 3);
}

// The workspace may be too small still, and would grow while a step is recorded.
TEST_F(Recorded, AStepWhoseFirstLaunchFailedIsLaunchedOnceMore) {
  const auto ops = ops::make_ops(ctx);
  RecordedSteps steps(*ops, {}, {8, 8, 1, 100});
  const auto bring = [](bool) {};
  EXPECT_THROW(steps.run({1, 1, 512}, bring, [] { fail(ErrorCode::out_of_memory, "no memory"); }), Error);
  int launched = 0;
  const auto step = [&] { steps.run({1, 1, 512}, bring, [&] { ++launched; }); };
  step();
  EXPECT_EQ(queue.recorded, 0);
  EXPECT_EQ(launched, 1);
  step();
  EXPECT_EQ(queue.recorded, 1);
}

TEST_F(Recorded, RecordingsGoWithTheWorkspace) {
  const auto ops = ops::make_ops(ctx);
  RecordedSteps steps(*ops, {}, {8, 8, 1, 100});
  const auto step = [&](int64_t n, int64_t bytes) {
    steps.run(
        {n, 1, 512}, [](bool) {},
        [&ops, bytes] {
          ops::Workspace::Scope scope(ops->workspace());
          ops->workspace().take_bytes(bytes);
          ops->workspace().take_bytes(bytes);
        });
  };
  step(1, 1 << 20), step(1, 1 << 20), step(1, 1 << 20);
  EXPECT_EQ(steps.recorded(), 1);
  step(2, 1 << 10), step(2, 1 << 10);
  EXPECT_EQ(steps.recorded(), 2) << "fits in what there is";
  step(3, 1 << 22);
  EXPECT_EQ(steps.recorded(), 0);
  step(3, 1 << 22), step(1, 1 << 20), step(2, 1 << 10);
  EXPECT_EQ(steps.recorded(), 3);
}

TEST(RecordedSupport, IsTheQueues) {
  Context host = test_context();
  EXPECT_FALSE(RecordedSteps::supported(host));
  HostRecorder recorder;
  Context recording{.pool = test_pool(), .queue = recorder};
  EXPECT_TRUE(RecordedSteps::supported(recording));
  struct DefaultStream : HostRecorder {
    std::unique_ptr<Graph> capture(const std::function<void()>&) override {
      fail(ErrorCode::cuda, "the default stream cannot be recorded");
    }
  } refusing;
  Context no{.pool = test_pool(), .queue = refusing};
  EXPECT_FALSE(RecordedSteps::supported(no));
}

std::string fixture(const std::string& name) { return std::string(SLUICE_SOURCE_DIR) + "/tests/fixtures/" + name; }

struct RecordedModels : Recorded, testing::WithParamInterface<const char*> {};

TEST_P(RecordedModels, EverySize) { check_every_size(ctx, *load(fixture(GetParam()), DType::bf16), 19); }
TEST_P(RecordedModels, Changes) {
  // Of other weights: rounded.
  if (std::string(GetParam()) == "deepseek-v3") GTEST_SKIP() << "its longest sequence is too short";
  check_changes(ctx, *load(fixture(GetParam()), DType::f32), *load(fixture(GetParam()), DType::f32, "fp8"));
}
TEST_P(RecordedModels, GrowingContexts) {
  const auto model = load(fixture(GetParam()), DType::f32);
  if (model->info().max_positions >= 1024) check_growing_contexts(ctx, *model, 544);
}
INSTANTIATE_TEST_SUITE_P(Fixtures, RecordedModels, testing::Values("qwen3-moe", "nemotron-h", "deepseek-v3"),
                         test::kNamedByText);

TEST_F(Recorded, DraftsToVerify) { check_drafts(ctx, *load(fixture("deepseek-v3"), DType::f32), 3); }

}  // namespace
}  // namespace sluice::model
