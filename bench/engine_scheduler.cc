// SPDX-License-Identifier: Apache-2.0
// The engine's own cost per step, without a model: scheduling many decoding sequences and committing their tokens, with
// and without drafts, and admission of prompts against a full prefix cache. One JSON line per case, microseconds per
// step.
//   bench/engine_scheduler
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <vector>

#include "engine/scheduler.h"

namespace {
using namespace sluice::engine;
using Clock = std::chrono::steady_clock;

double microseconds(Clock::duration d) { return std::chrono::duration<double, std::micro>(d).count(); }

void print(const char* name, int running, int drafts, std::vector<double>& times) {
  std::sort(times.begin(), times.end());
  std::printf("{\"bench\": \"%s\", \"running\": %d, \"drafts\": %d, \"us_median\": %.2f, \"us_p99\": %.2f}\n", name,
              running, drafts, times[times.size() / 2], times[times.size() * 99 / 100]);
}

// `running` sequences decode in contexts of 1,000 to 3,000 tokens.
void decode(int running, int drafts) {
  SchedulerConfig c;
  c.max_running = running;
  c.blocks = running * 80;
  c.drafts = drafts;
  Scheduler s(c);
  uint64_t name = 1;
  for (int i = 0; i < running; ++i) {
    NewSequence n;
    n.length = 1000 + i * 2000 / running;
    n.max_length = 5000;
    for (int64_t b = 0; b < n.length / c.block_size; ++b) n.hashes.push_back({name++, 7});
    s.add(std::move(n));
  }
  std::vector<int64_t> lengths;
  std::vector<double> times;
  int decoding = 0;
  while (times.size() < 1500) {
    const auto start = Clock::now();
    const auto plan = s.schedule();
    for (const PlanEntry& e : plan) {
      const int64_t tokens = e.last ? 1 + e.drafts / 2 : 0;
      for (int64_t t = e.context + e.rows - e.drafts; e.last && t < e.context + e.rows - e.drafts + tokens; ++t)
        if ((t + 1) % c.block_size == 0) s.add_hash(e.sequence, {name++, 7});
      s.advance(e, tokens);
    }
    decoding = static_cast<int>(std::count_if(plan.begin(), plan.end(), [](const PlanEntry& e) { return e.last; }));
    if (decoding == running && static_cast<int>(plan.size()) == running)
      times.push_back(microseconds(Clock::now() - start));
    if (plan.empty() || plan.front().context > 4900) break;
  }
  print("decode", running, drafts, times);
}

// A prompt of 4,096 tokens comes and goes; its 63 blocks are found in the prefix cache.
void admit() {
  SchedulerConfig c;
  c.max_running = 64;
  c.blocks = 16384;
  Scheduler s(c);
  std::vector<double> times;
  for (int round = 0; round < 2000; ++round) {
    NewSequence n;
    n.length = 4096;
    n.max_length = 4200;
    for (uint64_t b = 0; b < 64; ++b) n.hashes.push_back({b, 9});
    const Handle h = s.add(std::move(n));
    while (true) {
      const auto start = Clock::now();
      const auto plan = s.schedule();
      const PlanEntry e = plan.front();
      s.advance(e, e.last ? 1 : 0);
      if (round > 0) times.push_back(microseconds(Clock::now() - start));
      if (e.last) break;
    }
    s.remove(h);
  }
  print("admit_cached", 1, 0, times);
}
}  // namespace

int main() {
  for (const int running : {1, 8, 64, 256})
    for (const int drafts : {0, 3}) decode(running, drafts);
  admit();
}
