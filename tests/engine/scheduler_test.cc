// SPDX-License-Identifier: Apache-2.0
// The scheduler against a cache that is only imagined: each place of a block remembers which prefix was written there,
// each slot which prefix its state belongs to. Whatever the scheduler shares, takes away, forgets or copies, a step
// must find exactly its own past.
#include "engine/scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <tuple>

#include "base/error.h"
#include "tests/support/random.h"

namespace sluice::engine {
namespace {

struct Simulated {
  int64_t arrival = 0;
  std::vector<int32_t> tokens;
  std::vector<uint64_t> prefixes;  // of tokens[0..i]
  int64_t max_length = 0, computed = 0;
  size_t hashed = 0;
  BlockHash last_hash;
  bool scored = false, running = false;
};

uint64_t mix(uint64_t a, uint64_t b) {
  uint64_t z = a * 0x9e3779b97f4a7c15u + b + 1;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  return z ^ (z >> 27);
}

class World {
 public:
  World(const SchedulerConfig& config, uint32_t seed)
      : config_(config),
        scheduler_(config),
        random_(seed),
        cells_(static_cast<size_t>(config.blocks) * static_cast<size_t>(config.block_size), 0),
        states_(static_cast<size_t>(config.max_running + config.snapshots), 0) {}

  void arrive() {
    Simulated s;
    // Few families of prompts over two tokens: long common prefixes, and prompts that are equal.
    const uint64_t family = random_() % 3;
    const int64_t capacity = config_.blocks * config_.block_size;
    const int64_t length = 1 + static_cast<int64_t>(random_() % static_cast<uint64_t>(capacity * 2 / 3));
    const int64_t own = static_cast<int64_t>(random_() % 3) * static_cast<int64_t>(random_() % 5);
    for (int64_t i = 0; i < length; ++i)
      append(s,
             static_cast<int32_t>(mix(family, static_cast<uint64_t>(i)) % 2 ^ (i + own >= length ? random_() % 2 : 0)));
    s.scored = random_() % 8 == 0;
    s.max_length = length + static_cast<int64_t>(random_() % static_cast<uint64_t>(capacity - length + 1));
    if (s.max_length == length && !s.scored) ++s.max_length;
    if (s.max_length > capacity) return;
    s.arrival = arrivals_++;
    NewSequence n;
    n.length = length;
    n.max_length = s.max_length;
    n.hashes = hashes(s);
    n.scored = s.scored;
    if (s.scored) n.reuse_limit = static_cast<int64_t>(random_() % static_cast<uint64_t>(length));
    sequences_[scheduler_.add(std::move(n))] = s;
  }

  void cancel_one() {
    if (sequences_.empty()) return;
    auto it = sequences_.begin();
    std::advance(it, random_() % sequences_.size());
    scheduler_.remove(it->first);
    sequences_.erase(it);
  }

  void step() {
    const auto plan = scheduler_.schedule();
    ASSERT_EQ(plan.empty(), sequences_.empty());
    check_fairness(plan);
    check_budgets(plan);
    if (static_cast<int64_t>(plan.size()) == scheduler_.running()) check_ownership(plan);
    for (const PlanEntry& e : plan)
      if (e.restore) states_[static_cast<size_t>(e.slot)] = states_[static_cast<size_t>(*e.restore)];
    std::vector<std::vector<int32_t>> drafts;
    for (const PlanEntry& e : plan) {
      check_past(e);
      drafts.push_back(run(e));
      if (testing::Test::HasFatalFailure()) return;
    }
    for (const PlanEntry& e : plan)
      if (e.save) states_[static_cast<size_t>(*e.save)] = states_[static_cast<size_t>(e.slot)];
    for (size_t i = 0; i < plan.size(); ++i) apply_step(plan[i], drafts[i]);
    ++steps;
  }

  Scheduler& scheduler() { return scheduler_; }
  bool idle() const { return sequences_.empty(); }
  int64_t waiting() const { return scheduler_.waiting(); }
  int64_t hits = 0, accepted = 0, finished = 0, steps = 0;

 private:
  void append(Simulated& s, int32_t token) {
    s.prefixes.push_back(mix(s.prefixes.empty() ? 0 : s.prefixes.back(), static_cast<uint64_t>(token)));
    s.tokens.push_back(token);
  }
  std::vector<BlockHash> hashes(Simulated& s) {
    std::vector<BlockHash> out;
    const auto size = static_cast<size_t>(config_.block_size);
    for (; s.hashed + size <= s.tokens.size(); s.hashed += size) {
      s.last_hash = hash_block({1, 2}, s.last_hash, std::span(s.tokens).subspan(s.hashed, size));
      out.push_back(s.last_hash);
    }
    return out;
  }
  uint64_t& cell(const PlanEntry& e, int64_t position) {
    const auto block = static_cast<size_t>(e.blocks[static_cast<size_t>(position / config_.block_size)]);
    return cells_[block * static_cast<size_t>(config_.block_size) + static_cast<size_t>(position % config_.block_size)];
  }
  // The imagined model.
  static int32_t next_token(uint64_t prefix) { return static_cast<int32_t>(mix(prefix, 77) % 2); }

  // The oldest one advances whenever it runs; while it waits, nobody else is admitted.
  void check_fairness(std::span<const PlanEntry> plan) {
    if (sequences_.empty()) return;
    const auto oldest = std::min_element(sequences_.begin(), sequences_.end(), [](const auto& a, const auto& b) {
      return a.second.arrival < b.second.arrival;
    });
    const bool planned =
        std::any_of(plan.begin(), plan.end(), [&](const PlanEntry& e) { return e.sequence == oldest->first; });
    const bool admitted = std::any_of(plan.begin(), plan.end(), [](const PlanEntry& e) { return e.admitted; });
    ASSERT_TRUE(planned || !admitted);
    if (planned) oldest->second.running = true;
    // It is never a victim.
    ASSERT_TRUE(planned || !oldest->second.running);
    for (size_t i = 1; i < plan.size(); ++i)
      ASSERT_TRUE(plan[i].admitted ||
                  sequences_.at(plan[i - 1].sequence).arrival < sequences_.at(plan[i].sequence).arrival);
  }

  void check_budgets(std::span<const PlanEntry> plan) {
    int64_t prompt = 0, scored = 0;
    std::set<int> slots;
    std::set<Handle> handles;
    ASSERT_LE(scheduler_.running(), config_.max_running);
    for (const PlanEntry& e : plan) {
      const Simulated& s = sequences_.at(e.sequence);
      ASSERT_TRUE(handles.insert(e.sequence).second);
      ASSERT_TRUE(slots.insert(e.slot).second);
      ASSERT_TRUE(e.slot >= 0 && e.slot < config_.max_running);
      const int64_t known = e.rows - e.drafts;
      const bool decoding = !e.admitted && known == 1 && s.computed > 0 && e.last && s.computed + 1 == length(s);
      if (!decoding) {
        prompt += known;
        ASSERT_EQ(e.drafts, 0);
        if (s.scored) scored += known;
      }
      ASSERT_LE(e.drafts, config_.drafts);
      ASSERT_LE(e.context + e.rows, s.max_length);
      ASSERT_GE(known, 1);
      ASSERT_EQ(e.last, e.context + known == length(s));
      ASSERT_GE(static_cast<int64_t>(e.blocks.size()) * config_.block_size, e.context + e.rows);
    }
    // A resumed or fully cached sequence with one row left counts as decoding above and as a prompt in the budget.
    ASSERT_LE(prompt, config_.prefill_budget);
    ASSERT_LE(scored, config_.scored_rows);
  }

  void check_ownership(std::span<const PlanEntry> plan) {
    std::map<int32_t, int> users;
    for (const PlanEntry& e : plan)
      for (const int32_t b : e.blocks) ++users[b];
    ASSERT_EQ(static_cast<int32_t>(users.size()), scheduler_.pool().size() - scheduler_.pool().available());
    for (const auto& [block, count] : users) ASSERT_EQ(scheduler_.pool().references(block), count);
    // What is written belongs to one sequence alone.
    for (const PlanEntry& e : plan)
      for (int64_t p = e.context; p < e.context + e.rows; ++p)
        ASSERT_EQ(users[e.blocks[static_cast<size_t>(p / config_.block_size)]], 1);
  }

  static int64_t length(const Simulated& s) { return static_cast<int64_t>(s.tokens.size()); }

  void check_past(const PlanEntry& e) {
    Simulated& s = sequences_.at(e.sequence);
    if (e.admitted) {
      s.computed = e.context;
      hits += e.context > 0 ? 1 : 0;
      ASSERT_EQ(e.context % config_.block_size, 0);
      ASSERT_EQ(e.restore.has_value(), config_.recurrent && e.context > 0);
    }
    ASSERT_EQ(s.computed, e.context);
    for (int64_t p = 0; p < e.context; ++p)
      ASSERT_EQ(cell(e, p), s.prefixes[static_cast<size_t>(p)]) << "position " << p << " of " << e.context;
    if (!config_.recurrent || e.context == 0) return;
    ASSERT_EQ(states_[static_cast<size_t>(e.slot)], s.prefixes[static_cast<size_t>(e.context - 1)]);
  }

  // Writes the rows; returns the drafts, of which each is right more often than not.
  std::vector<int32_t> run(const PlanEntry& e) {
    const Simulated& s = sequences_.at(e.sequence);
    const int64_t known = e.rows - e.drafts;
    for (int64_t p = e.context; p < e.context + known; ++p) cell(e, p) = s.prefixes[static_cast<size_t>(p)];
    uint64_t prefix = s.prefixes[static_cast<size_t>(e.context + known - 1)];
    states_[static_cast<size_t>(e.slot)] = prefix;
    std::vector<int32_t> drafts;
    for (int64_t i = 0; i < e.drafts; ++i) {
      drafts.push_back(random_() % 4 == 0 ? 9 : next_token(prefix));
      prefix = mix(prefix, static_cast<uint64_t>(drafts.back()));
      cell(e, e.context + known + i) = prefix;
    }
    return drafts;
  }

  void apply_step(const PlanEntry& e, const std::vector<int32_t>& drafts) {
    Simulated& s = sequences_.at(e.sequence);
    int64_t new_tokens = 0;
    bool ends = false;
    if (e.last && length(s) == s.max_length) ends = true;  // only the prompt was wanted
    for (size_t i = 0; e.last && !ends && i <= drafts.size(); ++i) {
      const int32_t token = next_token(s.prefixes.back());
      append(s, token);
      ++new_tokens;
      ends = length(s) == s.max_length || random_() % 40 == 0;
      if (i == drafts.size() || drafts[i] != token) break;
      accepted += ends ? 0 : 1;
    }
    if (!ends || config_.drafts == 0) {
      for (const BlockHash& h : hashes(s)) scheduler_.add_hash(e.sequence, h);
      scheduler_.advance(e, new_tokens);
    }
    if (ends) {
      ++finished;
      scheduler_.remove(e.sequence);
      sequences_.erase(e.sequence);
      return;
    }
    s.computed += e.last ? e.rows - 1 - e.drafts + new_tokens : e.rows;
    states_[static_cast<size_t>(e.slot)] = s.prefixes[static_cast<size_t>(s.computed - 1)];  // Cache::commit
  }

  SchedulerConfig config_;
  Scheduler scheduler_;
  std::mt19937 random_;
  std::map<Handle, Simulated> sequences_;
  std::vector<uint64_t> cells_, states_;
  int64_t arrivals_ = 0;
};

SchedulerConfig random_config(std::mt19937& random) {
  SchedulerConfig c;
  c.max_running = 1 + static_cast<int>(random() % 8);
  c.prefill_budget = 1 + random() % 20;
  c.scored_rows = 1 + random() % 6;
  c.block_size = 1 + random() % 6;
  c.blocks = 6 + static_cast<int32_t>(random() % 30);
  c.prefix_cache = random() % 4 != 0;
  c.recurrent = random() % 2 == 0;
  c.snapshots = c.recurrent && c.prefix_cache ? static_cast<int>(random() % 6) : 0;
  c.drafts = static_cast<int>(random() % 5);
  return c;
}

TEST(Scheduler, RandomArrivalsInTinyPools) {
  std::mt19937 random = test::rng();
  int64_t steps = 0, hits = 0, recurrent_hits = 0, accepted = 0, finished = 0, preemptions = 0;
  for (int world_number = 0; world_number < 150; ++world_number) {
    const SchedulerConfig config = random_config(random);
    SCOPED_TRACE(
        fmt::format("world {}: blocks {} x {}, running {}, prefill {}, cache {}, recurrent {} ({}), "
                    "drafts {}",
                    world_number, config.blocks, config.block_size, config.max_running, config.prefill_budget,
                    config.prefix_cache, config.recurrent, config.snapshots, config.drafts));
    World world(config, random());
    const uint32_t pressure = 2 + random() % 12;
    for (int i = 0; i < 300; ++i) {
      if (random() % pressure == 0 && world.waiting() < 12) world.arrive();
      if (random() % 40 == 0) world.cancel_one();
      if (random() % 200 == 0) world.scheduler().flush();
      world.step();
      if (HasFatalFailure()) return;
    }
    // Nothing arrives any more: every request ends. Each step computes at least a row of the oldest one.
    for (int64_t left = 200000; !world.idle(); --left) {
      ASSERT_GT(left, 0) << "requests that never end";
      world.step();
      if (HasFatalFailure()) return;
    }
    EXPECT_TRUE(world.scheduler().idle());
    EXPECT_EQ(world.scheduler().pool().available(), config.blocks) << "leaked blocks";
    steps += world.steps;
    hits += world.hits;
    recurrent_hits += config.recurrent ? world.hits : 0;
    accepted += world.accepted;
    finished += world.finished;
    preemptions += world.scheduler().preemptions();
  }
  std::printf("    %ld steps, %ld ended, %ld prefix hits (%ld with states), %ld pre-emptions, %ld drafts accepted\n",
              steps, finished, hits, recurrent_hits, preemptions, accepted);
  // The test must not pass because nothing happened.
  EXPECT_GT(hits, 300);
  EXPECT_GT(recurrent_hits, 30);
  EXPECT_GT(preemptions, 300);
  EXPECT_GT(accepted, 1000);
}

SchedulerConfig small() {
  SchedulerConfig c;
  c.max_running = 4;
  c.prefill_budget = 16;
  c.blocks = 16;
  c.block_size = 4;
  return c;
}

std::vector<BlockHash> names(uint64_t family, size_t count) {
  std::vector<BlockHash> out;
  for (size_t i = 0; i < count; ++i) out.push_back({family, i});
  return out;
}

TEST(Scheduler, EqualPromptsAreComputedOnce) {
  Scheduler s(small());
  // n = 3 answers: 9 tokens, two full blocks.
  for (int i = 0; i < 3; ++i) s.add({9, 12, names(1, 2)});
  auto plan = s.schedule();
  ASSERT_EQ(plan.size(), 1u) << "the others wait for what the first computes";
  EXPECT_EQ(plan[0].rows, 9);
  s.advance(plan[0], 1);
  plan = s.schedule();
  ASSERT_EQ(plan.size(), 3u);
  for (const size_t i : {1, 2}) {
    EXPECT_EQ(plan[i].context, 8);
    EXPECT_EQ(plan[i].rows, 1);
  }
}

TEST(Scheduler, TheSecondUserOfASystemPromptLeavesASnapshotForTheThird) {
  SchedulerConfig c = small();
  c.recurrent = true;
  c.snapshots = 4;
  Scheduler s(c);
  const auto finish = [&](std::vector<BlockHash> hashes, std::vector<int64_t> contexts) {
    const Handle h = s.add({15, 16, std::move(hashes)});
    for (const int64_t context : contexts) {
      const auto plan = s.schedule();
      ASSERT_EQ(plan.size(), 1u);
      EXPECT_EQ(plan[0].context, context);
      s.advance(plan[0], plan[0].last ? 1 : 0);
    }
    s.remove(h);
  };
  // Two common blocks, then own ones. The first user's chunks end at the last boundary, 12.
  finish({{1, 1}, {1, 2}, {2, 1}}, {0, 12});
  finish({{1, 1}, {1, 2}, {3, 1}}, {0, 8, 12});
  finish({{1, 1}, {1, 2}, {4, 1}}, {8, 12});
  finish({{1, 1}, {1, 2}, {4, 1}}, {12});
}

// The engine takes the results of one entry after another, publishes its blocks, and goes on reading the others.
TEST(Scheduler, APlanStaysUntilTheNextSchedule) {
  SchedulerConfig c = small();
  c.prefill_budget = 64;
  Scheduler s(c);
  for (uint64_t i = 0; i < 3; ++i) s.add({9, 20, names(i + 1, 2)});
  const auto plan = s.schedule();
  ASSERT_EQ(plan.size(), 3u);
  const std::vector<PlanEntry> kept(plan.begin(), plan.end());
  std::vector<std::vector<int32_t>> blocks;
  for (const PlanEntry& e : plan) blocks.emplace_back(e.blocks.begin(), e.blocks.end());
  std::set<size_t> removed;
  const auto expect_kept = [&](const char* after) {
    for (size_t i = 0; i < kept.size(); ++i) {
      SCOPED_TRACE(fmt::format("entry {} after {}", i, after));
      const PlanEntry &a = plan[i], &b = kept[i];
      EXPECT_EQ(std::tuple(a.sequence, a.slot, a.context, a.rows, a.drafts, a.last, a.admitted, a.restore, a.save),
                std::tuple(b.sequence, b.slot, b.context, b.rows, b.drafts, b.last, b.admitted, b.restore, b.save));
      EXPECT_TRUE(removed.count(i) == 1 || std::ranges::equal(a.blocks, blocks[i]));
    }
  };
  s.add_hash(plan[0].sequence, {7, 7});
  expect_kept("add_hash");
  s.advance(plan[0], 1);
  expect_kept("advance");
  for (uint64_t i = 0; i < 1000; ++i) s.add({9, 12, names(i + 9, 2)});
  expect_kept("add");
  s.flush();
  expect_kept("flush");
  s.remove(plan[1].sequence);
  removed.insert(1);
  expect_kept("remove");
  s.add({13, 16, names(5, 3)});  // takes the place of the one that was removed
  expect_kept("add in its place");
  s.advance(plan[2], 1);
  expect_kept("the last advance");
}

TEST(Scheduler, RefusesWhatCanNeverFit) {
  Scheduler s(small());
  EXPECT_THROW(s.add({10, 65, {}}), Error);
  EXPECT_NO_THROW(s.add({10, 64, {}}));
}

}  // namespace
}  // namespace sluice::engine
