// SPDX-License-Identifier: Apache-2.0
// What a step refuses before anything of it runs, and how its integers reach a device that is not the host.
#include "model/batch.h"

#include <climits>
#include <deque>

#include "ops/cpu/cpu_ops.h"
#include "tests/model/fixture.h"
#include "tests/support/random.h"

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

// Memory of the host that counts as a GPU's.
class OtherDevice : public Device {
 public:
  DeviceId id() const override { return {DeviceId::Kind::cuda, 3}; }
  DeviceMemory memory() override { return {}; }
  std::shared_ptr<void> allocate(int64_t bytes) override { return host_device().allocate(bytes); }
  std::shared_ptr<void> allocate_staging(int64_t bytes) override { return host_device().allocate(bytes); }
  std::unique_ptr<Queue> make_queue() override { return nullptr; }
};

// Work that is as late as a GPU's may be: it runs when somebody waits for it.
class LateQueue : public Queue {
 public:
  Device& device() const override { return device_; }
  void* stream() const override { return nullptr; }
  void copy(void* to, const void* from, int64_t bytes) override {
    enqueue([=] { std::memcpy(to, from, static_cast<size_t>(bytes)); });
  }
  void zero(void*, int64_t) override { fail(ErrorCode::internal, "nothing is to be cleared"); }
  void wait() override { run_to(enqueued_); }
  std::unique_ptr<Event> record() override {
    struct Point : Event {
      Point(LateQueue& q) : queue(q), at(q.enqueued_) {}
      void wait() override { queue.run_to(at); }
      LateQueue& queue;
      int64_t at;
    };
    return std::make_unique<Point>(*this);
  }
  void wait_for(const Event&) override {}
  std::unique_ptr<Graph> capture(const std::function<void()>&) override { return nullptr; }

  void enqueue(std::function<void()> work) {
    work_.push_back(std::move(work));
    ++enqueued_;
  }
  int64_t waiting() const { return static_cast<int64_t>(work_.size()); }

 private:
  void run_to(int64_t at) {
    for (; enqueued_ - waiting() < at; work_.pop_front()) work_.front()();
  }
  mutable OtherDevice device_;
  std::deque<std::function<void()>> work_;
  int64_t enqueued_ = 0;
};

class LateOps : public ops::cpu::CpuOps {
 public:
  LateOps(Context& ctx, LateQueue& queue) : CpuOps(ctx), queue_(queue) {}
  std::shared_ptr<Event> move_batch(const ops::BatchMove& move) override {
    queue_.enqueue([=, this, pieces = std::vector(move.pieces.begin(), move.pieces.end())] {
      CpuOps::move_batch({move.from, move.to, pieces});
    });
    return queue_.record();
  }

 private:
  LateQueue& queue_;
};

// All that a batch says, once the device has it.
std::vector<int32_t> integers(const Batch& b) {
  std::vector<int32_t> out;
  const auto add = [&](const int32_t* from, int64_t count) { out.insert(out.end(), from, from + count); };
  for (const int32_t* of_rows : {b.tokens, b.positions, b.kv_slots, b.state_out}) add(of_rows, b.rows);
  for (const int32_t* begins : {b.row_begin, b.block_begin}) add(begins, b.sequences + 1);
  for (const int32_t* of_sequences : {b.contexts, b.state_in}) add(of_sequences, b.sequences);
  add(b.logits_of, b.logit_rows);
  add(b.blocks, b.block_begin[b.sequences]);
  return out;
}

// Steps one after another, copied or moved, on a device that is as late as it may be: each step's work sees its own
// integers, although the host has written the next step's by then. The host waits for the integers of
// the step before the last only.
TEST(Batch, HasItsOwnIntegersWhenItRuns) {
  auto random = test::rng<std::mt19937>();
  const auto below = [&](int64_t n) { return static_cast<int64_t>(random() % static_cast<uint64_t>(n)); };
  const auto model = load(std::string(SLUICE_SOURCE_DIR) + "/tests/fixtures/nemotron-h", DType::f32);
  constexpr int64_t kBlocks = 600, kRows = 90, kSequences = 20;
  const CacheConfig cache{.blocks = kBlocks, .block_size = 4, .slots = kSequences};
  const BatchLimits limits{kRows, kSequences, kBlocks, model->info().vocab, 400};
  const StateTable states(kSequences, cache.versions());
  LateQueue queue;
  Context ctx{.pool = test_pool(), .queue = queue};
  LateOps ops(ctx, queue);
  BatchBuilder host(host_device(), model->cache_shape(), cache, limits);
  BatchBuilder late(queue.device(), model->cache_shape(), cache, limits);
  std::vector<std::vector<int32_t>> expected, seen;
  for (int step = 0; step < 40; ++step) {
    late.clear();
    EXPECT_EQ(queue.waiting(), std::min(2 * step, 3)) << "all but the integers of the step before the last";
    host.clear();
    const auto sequences = 1 + below(kSequences - 4);
    for (int64_t s = 0; s < sequences; ++s) {
      std::vector<int32_t> tokens(static_cast<size_t>(1 + below(4))), blocks(30);
      for (int32_t& t : tokens) t = static_cast<int32_t>(below(limits.vocab));
      for (int32_t& b : blocks) b = static_cast<int32_t>(below(kBlocks));
      const BatchSequence sequence{static_cast<int>(s), tokens, below(100), blocks, below(2)};
      host.add(sequence, states);
      late.add(sequence, states);
    }
    const int64_t more = below(4);
    host.pad(sequences + more, host.rows() + more, 100);
    late.pad(sequences + more, late.rows() + more, 100);
    expected.push_back(integers(host.upload(host_queue())));
    if (below(2) == 0)
      late.move(ops);
    else
      late.upload(ops);
    queue.enqueue([&seen, batch = late.batch()] { seen.push_back(integers(batch)); });
  }
  queue.wait();
  EXPECT_EQ(seen, expected);
}

}  // namespace
}  // namespace sluice::model
