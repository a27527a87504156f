// SPDX-License-Identifier: Apache-2.0
// Steps that are replayed from recordings against steps that are not, for any queue that records: the same model, the
// same sequences, bit for bit.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>

#include "model/runner.h"
#include "tests/support/random.h"

namespace sluice::model {

// A queue that begins to record and cannot finish, as where there is no memory left.
class RefusingQueue : public Queue {
 public:
  explicit RefusingQueue(Queue& queue) : queue_(queue) {}
  Device& device() const override { return queue_.device(); }
  void* stream() const override { return queue_.stream(); }
  void copy(void* to, const void* from, int64_t bytes) override { queue_.copy(to, from, bytes); }
  void zero(void* memory, int64_t bytes) override { queue_.zero(memory, bytes); }
  void wait() override { queue_.wait(); }
  std::unique_ptr<Event> record() override { return queue_.record(); }
  void wait_for(const Event& event) override { queue_.wait_for(event); }
  std::unique_ptr<Graph> capture(const std::function<void()>& enqueue) override {
    if (asked_++ == 0) return queue_.capture(enqueue);  // whether it records at all
    fail(ErrorCode::out_of_memory, "no memory for a recording");
  }

 private:
  Queue& queue_;
  int asked_ = 0;
};

// Sequences of one Runner, each in a slot of its own with blocks in scrambled order.
class StepDriver {
 public:
  struct Part {
    int slot;
    std::vector<int32_t> tokens;
  };
  struct Options {
    int slots = 1;
    int64_t tokens = 256;  // of a sequence, at most
    int drafts = 0;
    RecordingConfig recording = {};
  };
  static constexpr int64_t kBlockSize = 16;

  StepDriver(Context& ctx, const Model& model, const Options& o)
      : contexts_(static_cast<size_t>(o.slots)), runner_(ctx, model, runner_config(o)) {
    const int64_t each = o.tokens / kBlockSize;
    for (int s = 0; s < o.slots; ++s) {
      std::vector<int32_t>& own = blocks_.emplace_back();
      for (int64_t i = 0; i < each; ++i) own.push_back(static_cast<int32_t>((each - 1 - i) * o.slots + s));
    }
  }

  // Logits of every row.
  std::vector<float> run(const std::vector<Part>& parts) {
    runner_.clear();
    int64_t rows = 0;
    for (const Part& p : parts) {
      const auto slot = static_cast<size_t>(p.slot);
      const auto count = static_cast<int64_t>(p.tokens.size());
      runner_.add({p.slot, p.tokens, contexts_[slot], blocks_[slot], count, drafts_ > 0 && contexts_[slot] > 0});
      rows += count;
    }
    runner_.run();
    std::vector<float> logits(static_cast<size_t>(rows * runner_.model().info().vocab), NAN);
    runner_.read_logits(0, rows, logits.data());
    for (const Part& p : parts) {
      const auto slot = static_cast<size_t>(p.slot);
      // Of drafts the first half counts.
      const bool verified = drafts_ > 0 && contexts_[slot] > 0;
      const auto kept = static_cast<int64_t>(verified ? (p.tokens.size() + 1) / 2 : p.tokens.size());
      if (verified) runner_.commit(p.slot, kept);
      contexts_[slot] += kept;
    }
    return logits;
  }
  int64_t context(int slot) const { return contexts_[static_cast<size_t>(slot)]; }
  Runner& runner() { return runner_; }

 private:
  RunnerConfig runner_config(const Options& o) {
    drafts_ = o.drafts;
    RunnerConfig c;
    c.cache.block_size = kBlockSize;
    c.cache.blocks = o.tokens / kBlockSize * o.slots;
    c.cache.slots = o.slots;
    c.cache.draft_rows = o.drafts > 0 ? o.drafts + 1 : 0;
    c.rows = std::max<int64_t>(o.tokens, o.slots * (o.drafts + 1));
    c.sequences = o.slots;
    c.sequence_tokens = o.tokens;
    c.drafts = o.drafts;
    c.recording = o.recording;
    return c;
  }

  int drafts_ = 0;
  std::vector<int64_t> contexts_;
  std::vector<std::vector<int32_t>> blocks_;
  Runner runner_;
};

// The same steps three times: recorded, padded but never recorded, and as they are. The last one computes other numbers
// of rows, so it has the same bits only with a model whose rows do not depend on the batch.
class ThreeRuns {
 public:
  ThreeRuns(Context& ctx, const Model& model, StepDriver::Options o)
      : random_(test::rng<std::mt19937>()),
        vocab_(model.info().vocab),
        invariant_(model.info().row_invariant),
        refusing_(ctx.queue),
        refusing_ctx_{.pool = ctx.pool,
                      .log = [this](LogLevel level, std::string_view) { warnings_ += level == LogLevel::warning; },
                      .queue = refusing_},
        recorded_(ctx, model, o),
        padded_(refusing_ctx_, model, o),
        plain_(ctx, model, unrecorded(o)) {}

  std::vector<int32_t> tokens(int64_t count) {
    std::vector<int32_t> out(static_cast<size_t>(count));
    for (int32_t& t : out) t = static_cast<int32_t>(random_() % static_cast<uint64_t>(vocab_));
    return out;
  }
  int64_t below(int64_t n) { return static_cast<int64_t>(random_() % static_cast<uint64_t>(n)); }
  // `count` of the slots, in some order.
  std::vector<int> some(int count, int slots) {
    std::vector<int> all(static_cast<size_t>(slots));
    std::iota(all.begin(), all.end(), 0);
    std::shuffle(all.begin(), all.end(), random_);
    all.resize(static_cast<size_t>(count));
    return all;
  }

  void run(const std::vector<StepDriver::Part>& parts, const std::string& what) {
    const std::vector<float> logits = recorded_.run(parts);
    expect_same(padded_.run(parts), logits, what + ", not recorded");
    const std::vector<float> plain = plain_.run(parts);
    if (invariant_) expect_same(plain, logits, what + ", not padded");
  }
  // A step of `each` new tokens of these slots.
  void decode(const std::vector<int>& slots, const std::string& what, int64_t each = 1) {
    std::vector<StepDriver::Part> parts;
    for (const int slot : slots) parts.push_back({slot, tokens(each)});
    run(parts, what);
  }
  template <class Change>
  void change(Change&& change) {
    for (StepDriver* d : {&recorded_, &padded_, &plain_}) change(d->runner());
  }
  StepDriver& recorded() { return recorded_; }
  int64_t recordings() { return recorded_.runner().recorded_steps(); }
  int warnings() const { return warnings_; }  // of the runs that could not be recorded

 private:
  static StepDriver::Options unrecorded(StepDriver::Options o) {
    o.recording.enabled = false;
    return o;
  }
  void expect_same(const std::vector<float>& a, const std::vector<float>& b, const std::string& what) const {
    ASSERT_EQ(a.size(), b.size());
    EXPECT_TRUE(std::all_of(a.begin(), a.end(), [](float x) { return std::isfinite(x); })) << what;
    const auto vocab = static_cast<size_t>(vocab_);
    for (size_t row = 0; row < a.size() / vocab; ++row)
      ASSERT_EQ(0, std::memcmp(a.data() + row * vocab, b.data() + row * vocab, vocab * sizeof(float)))
          << what << ", row " << row;
  }

  std::mt19937 random_;
  int64_t vocab_;
  bool invariant_;
  int warnings_ = 0;
  RefusingQueue refusing_;
  Context refusing_ctx_;
  StepDriver recorded_, padded_, plain_;
};

// Batches of every size, from sequences of many lengths; those that are not in a step keep what they have.
inline void check_every_size(Context& ctx, const Model& model, int slots) {
  ThreeRuns t(ctx, model, {.slots = slots, .tokens = 128});
  for (int s = 0; s < slots; ++s) t.run({{s, t.tokens(1 + t.below(40))}}, "a prompt");
  int64_t shapes = 0;
  for (int n = slots; n > 0; n -= 1 + n / 6) {
    for (int step = 0; step < 4; ++step)
      t.decode(t.some(n, slots), std::to_string(n) + " sequences, step " + std::to_string(step));
    ++shapes;
  }
  EXPECT_GT(t.recordings(), 0);
  EXPECT_LE(t.recordings(), shapes);
  EXPECT_EQ(t.warnings(), 1) << "of one that repeats";
}

// Contexts that grow across blocks, attention's chunks and the bounds of recordings; a new sequence among old ones.
inline void check_growing_contexts(Context& ctx, const Model& model, int64_t tokens) {
  ThreeRuns t(ctx, model, {.slots = 4, .tokens = tokens});
  for (int64_t bound = 256; bound + 8 <= tokens; bound *= 2) {
    const int64_t have = t.recorded().context(0);
    for (int s = 0; s < 3; ++s) t.run({{s, t.tokens(bound - 5 - 2 * s - have)}}, "up to " + std::to_string(bound));
    for (int step = 0; step < 9; ++step) t.decode({0, 2}, "at " + std::to_string(bound + step));
    t.decode({3, 1, 0}, "with one at its beginning");
    // All three as far as the first.
    for (int s = 1; s < 3; ++s)
      t.run({{s, t.tokens(t.recorded().context(0) - t.recorded().context(s))}}, "catching up");
  }
  EXPECT_GT(t.recordings(), 1);
}

// What a recording holds goes away: the model, the workspace.
inline void check_changes(Context& ctx, const Model& model, const Model& other) {
  ThreeRuns t(ctx, model, {.slots = 5, .tokens = 512});
  for (int s = 0; s < 5; ++s) t.run({{s, t.tokens(3 + s)}}, "a prompt");
  const auto decode = [&](const std::string& what) {
    for (int step = 0; step < 4; ++step) t.decode({4, 0, 2}, what + ", step " + std::to_string(step));
    EXPECT_GT(t.recordings(), 0) << what;
  };
  decode("at first");
  t.run({{1, t.tokens(400)}}, "a long prompt");
  decode("after a step that needed more memory");
  t.change([&](Runner& r) { r.set_model(other); });
  EXPECT_EQ(t.recordings(), 0);
  decode("another model");
  t.change([&](Runner& r) { r.set_model(model); });
  decode("the first model again");
}

// Rows of drafts, of which some are taken back.
inline void check_drafts(Context& ctx, const Model& model, int drafts) {
  ThreeRuns t(ctx, model, {.slots = 6, .tokens = 192, .drafts = drafts});
  for (int s = 0; s < 6; ++s) t.run({{s, t.tokens(2 + 5 * s)}}, "a prompt");
  for (int step = 0; step < 5; ++step) {
    t.decode(t.some(3, 6), "drafts of three", drafts + 1);
    t.decode(t.some(6, 6), "drafts of all", drafts + 1);
    t.decode(t.some(5, 6), "single rows");
    t.run({{0, t.tokens(1)}, {3, t.tokens(drafts + 1)}}, "some with drafts");
  }
  EXPECT_GE(t.recordings(), 3);
}

}  // namespace sluice::model
