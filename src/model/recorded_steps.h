// SPDX-License-Identifier: Apache-2.0
// Steps of decoding that are launched with one call. A step of a large model is some hundred short kernels, and
// planning and launching each takes the host longer than the GPU needs for it. So a step whose sequences all have the
// same few rows is padded to one of some sizes, recorded (a CUDA graph) and replayed from then on.
//
// A recording holds addresses and launch geometry and nothing of a step's integers, which are read from the batch when
// it runs. It is replayed for every step of its shape as long as the addresses stay.
#pragma once

#include <compare>
#include <functional>
#include <map>
#include <memory>
#include <optional>

#include "ops/ops.h"

namespace sluice::model {

struct RecordingConfig {
  bool enabled = true;          // where the device records work; the CPU does not
  int64_t max_sequences = 256;  // steps of more sequences are launched one kernel at a time: the GPU is the slower one
};

// What all steps of one recording have in common.
struct StepShape {
  int64_t sequences = 0;        // padded_sequences()
  int64_t rows_each = 0;        // of every sequence: 1, or more with drafts
  int64_t longest_context = 0;  // padded_context(): how attention is spread over the GPU depends on it

  int64_t rows() const { return sequences * rows_each; }
  auto operator<=>(const StepShape&) const = default;
};

// The size that a step of `sequences` is padded to, at most `most`. Few sizes, as each is recorded on its own (some
// milliseconds, 1 to 3 MB); close ones, as padding adds rows to the products of dense matrices, whose tiles have 8 rows
// or more. It costs no attention and no experts.
int64_t padded_sequences(int64_t sequences, int64_t most);
// A power of two, but at most `most` and at least `context`: twice the context at most keeps half of attention's blocks
// busy in the worst case.
int64_t padded_context(int64_t context, int64_t most);

class RecordedSteps {
 public:
  struct Limits {
    int64_t sequences = 0, rows = 0;  // of a step
    int64_t rows_each = 1;            // of a sequence in a step that is recorded
    int64_t sequence_tokens = 0;      // the longest context
  };
  // Whether `ctx`'s queue records work.
  static bool supported(Context& ctx);
  // `ops` must live longer.
  RecordedSteps(ops::Ops& ops, const RecordingConfig& config, const Limits& limits);

  // The shape that a batch is to be padded to; nothing: the step is launched as it is.
  std::optional<StepShape> shape_of(const ops::Batch& batch) const;
  // Enqueues a padded step. `enqueue` may be kept for as long as this object lives. A shape's first step is launched
  // kernel by kernel, which makes the workspace large enough; the second one is recorded. What cannot be recorded (out
  // of memory) goes on being launched, and is logged once. `bring` is called right before and is not recorded: it
  // enqueues what brings the step's integers, and is told whether a recording follows.
  void run(const StepShape& shape, const std::function<void(bool replays)>& bring,
           const std::function<void()>& enqueue);
  // Before an address changes that `enqueue` uses, other than the workspace's. Waits for the queue.
  void clear();

  int64_t recorded() const;

 private:
  struct Recording {
    std::unique_ptr<Graph> graph;
    bool launched = false;  // to its end: the workspace is large enough
    bool refused = false;
  };
  void follow_workspace();

  ops::Ops& ops_;
  RecordingConfig config_;
  Limits limits_;
  uint64_t generation_;
  bool logged_ = false;
  std::map<StepShape, Recording> steps_;  // that have been run
};

}  // namespace sluice::model
