// SPDX-License-Identifier: Apache-2.0
// Where a step of a model on a GPU spends its time, kernel by kernel, without a profiler.
#pragma once

#include <string>
#include <vector>

#include "model/model.h"
#include "model_cells.h"

namespace sluice::apps {

// All calls of one kernel in a step.
struct KernelTime {
  std::string name;
  int64_t count = 0;
  double microseconds = 0;  // of all calls
};

// One decoding step of cell.batch_size sequences after cell.input_len tokens or, if cell.new_tokens is 1, the step that
// computes the first `chunk` tokens of the prompts: the model's kernels, each run alone, and "sample", the choice of
// the tokens as the caller waits for it. The longest first. Nothing on the CPU.
std::vector<KernelTime> profile_step(Context& ctx, const model::Model& model, const Cell& cell, int64_t chunk);

}  // namespace sluice::apps
