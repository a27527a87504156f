// SPDX-License-Identifier: Apache-2.0
// What the engine counts, in the form that a Prometheus page needs: gauges, counters that only grow, histograms.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace sluice::engine {

// Counts by upper bound, the last bucket without one. Buckets are not cumulative.
class Histogram {
 public:
  static constexpr std::array<double, 20> kSeconds{1e-6, 1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3,
                                                   1e-2, 2e-2, 5e-2, 1e-1, 2e-1, 5e-1, 1,    5,    20,   100};
  // The next three are vLLM's. Its bounds of lengths end at the context's length; these are the same for all models.
  static constexpr std::array<double, 21> kPhaseSeconds{0.3, 0.5, 0.8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
                                                        30,  40,  50,  60, 120, 240, 480, 960, 1920, 7680};
  static constexpr std::array<double, 19> kTokens{1,   2,   5,   10,  20,  50,  100, 200, 500, 1e3,
                                                  2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5, 5e5, 1e6};
  static constexpr std::array<double, 13> kStepTokens{1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384};

  // `bounds`: one of the above; they must outlive the histogram.
  explicit Histogram(std::span<const double> bounds = kSeconds) : bounds_(bounds) {}
  void observe(double value);
  std::span<const double> bounds() const { return bounds_; }
  std::span<const int64_t> counts() const { return std::span(counts_).first(bounds_.size() + 1); }
  int64_t count() const { return count_; }
  double sum() const { return sum_; }

 private:
  std::span<const double> bounds_;
  std::array<int64_t, kPhaseSeconds.size() + 1> counts_{};  // of the most bounds
  int64_t count_ = 0;
  double sum_ = 0;
};

struct Metrics {
  // At present. Each choice of a request counts as one.
  int64_t running = 0, waiting = 0;
  int64_t queued = 0;                                      // of the waiting, those that were never in a step
  int64_t blocks = 0, blocks_used = 0, blocks_cached = 0;  // cached: free to be taken, but still findable
  // Since the start.
  int64_t requests = 0, requests_refused = 0;  // refused: the queue was full
  int64_t finished_stop = 0, finished_length = 0, finished_cancelled = 0, finished_error = 0;  // choices
  int64_t prompt_tokens = 0;  // of choices that were admitted
  int64_t cached_tokens = 0;  // of those, found in the prefix cache
  int64_t generation_tokens = 0;
  int64_t preemptions = 0;
  int64_t steps = 0, rows = 0;  // model passes, and their rows
  int64_t verify_rounds = 0, drafted = 0, accepted = 0;
  Histogram step_seconds;      // schedule, model, sampling, publishing
  Histogram schedule_seconds;  // the scheduler's share of a step
  Histogram overhead_seconds;  // everything of a step but the model and the sampling
  Histogram queue_seconds, first_token_seconds, inter_token_seconds;
  Histogram step_tokens{Histogram::kStepTokens};  // of prompts that a step read, and of answers that it gave
  // Of answers that ended with stop or length.
  Histogram request_seconds;
  Histogram prefill_seconds{Histogram::kPhaseSeconds};  // from the first step to the first token
  Histogram decode_seconds{Histogram::kPhaseSeconds};   // from there to the last token
  Histogram token_seconds;                              // decode time per token after the first
  Histogram prompt_lengths{Histogram::kTokens}, answer_lengths{Histogram::kTokens};
  Histogram longest_answers{Histogram::kTokens};  // per request

  double cache_hit_rate() const;  // cached_tokens / prompt_tokens
  double token_usage() const;     // blocks_used / blocks
  // Tokens per verification, the model's own one included; 0 without speculation.
  double accept_length() const;
  double accept_rate() const;  // accepted / drafted
};

}  // namespace sluice::engine
