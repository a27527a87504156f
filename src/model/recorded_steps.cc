// SPDX-License-Identifier: Apache-2.0
#include "model/recorded_steps.h"

#include <algorithm>
#include <bit>

#include "base/math.h"

namespace sluice::model {

namespace {
// Sizes of steps: multiples of `step` up to `last`.
struct Sizes {
  int64_t last, step;
};
constexpr Sizes kSizes[] = {{2, 1}, {4, 2}, {64, 8}, {256, 16}, {INT64_MAX, 64}};

// Contexts up to here share a recording: one of attention's chunks, which no blocks share. A recording for 512 takes
// one sequence of 64 to 192 tokens of Qwen3-30B-A3B 3.86 ms per step, one for 256 takes 3.64 (H100).
constexpr int64_t kShortestContext = 256;
}  // namespace

int64_t padded_sequences(int64_t sequences, int64_t most) {
  for (const Sizes& s : kSizes)
    if (sequences <= s.last) return std::max(sequences, std::min(round_up(sequences, s.step), most));
  return sequences;
}

int64_t padded_context(int64_t context, int64_t most) {
  const auto power = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max(context, kShortestContext))));
  return std::max(context, std::min(power, most));
}

bool RecordedSteps::supported(Context& ctx) {
  try {
    return ctx.queue.capture([] {}) != nullptr;
  } catch (const std::exception&) {  // a caller's stream may be one that cannot be recorded: the default stream
    return false;
  }
}

RecordedSteps::RecordedSteps(ops::Ops& ops, const RecordingConfig& config, const Limits& limits)
    : ops_(ops), config_(config), limits_(limits), generation_(ops.workspace().generation()) {
  config_.max_sequences = std::min({config.max_sequences, limits.sequences, limits.rows});
}

std::optional<StepShape> RecordedSteps::shape_of(const ops::Batch& batch) const {
  if (!config_.enabled || batch.sequences == 0 || batch.sequences > config_.max_sequences) return std::nullopt;
  const int64_t each = batch.longest_rows;
  if (each > limits_.rows_each || batch.rows != batch.sequences * each || batch.logit_rows != batch.rows)
    return std::nullopt;
  const int64_t most = std::min(config_.max_sequences, limits_.rows / each);
  return StepShape{padded_sequences(batch.sequences, most), each,
                   padded_context(batch.longest_context, limits_.sequence_tokens)};
}

// Recordings go with the memory that they were made on.
void RecordedSteps::follow_workspace() {
  const uint64_t now = ops_.workspace().generation();
  if (now != generation_) clear();
  generation_ = now;
}

void RecordedSteps::run(const StepShape& shape, const std::function<void(bool replays)>& bring,
                        const std::function<void()>& enqueue) {
  follow_workspace();
  Recording& step = steps_[shape];
  if (step.launched && !step.graph && !step.refused) {
    try {
      step.graph = ops_.ctx().queue.capture(enqueue);
      step.refused = step.graph == nullptr;
    } catch (const std::exception& error) {
      step.refused = true;
      if (!logged_)
        ops_.ctx().log(LogLevel::warning, fmt::format("steps of {} sequences are launched kernel by kernel, as they "
                                                      "could not be recorded: {}",
                                                      shape.sequences, error.what()));
      logged_ = true;
    }
  }
  bring(step.graph != nullptr);
  if (step.graph) return step.graph->launch();
  enqueue();
  step.launched = true;
  follow_workspace();
}

void RecordedSteps::clear() {
  if (recorded() > 0) ops_.ctx().queue.wait();  // one may be running
  for (auto& [shape, step] : steps_) step.graph.reset(), step.refused = false;
}

int64_t RecordedSteps::recorded() const {
  return std::count_if(steps_.begin(), steps_.end(), [](const auto& s) { return s.second.graph != nullptr; });
}

}  // namespace sluice::model
