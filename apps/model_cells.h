// SPDX-License-Identifier: Apache-2.0
// Batches of equal sequences through a whole model, timed: the cells of `sluice bench model --batch-size`.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "model/runner.h"

namespace sluice::apps {

struct Cell {
  int64_t batch_size = 1, input_len = 1;
  int64_t new_tokens = 1;  // of each sequence; 1: the prompts alone are timed
};

struct CellResult {
  Cell cell;
  double prefill_seconds = 0;  // to the first token of every sequence; the best run's
  double step_seconds = 0;     // a decoding step of all sequences, the mean of the best run; 0: new_tokens is 1
  // Bytes that such a step cannot avoid: weights, of the experts those that a uniform choice touches, keys, values and
  // recurrent states.
  double step_bytes = 0;
};

struct CellOptions {
  std::vector<Cell> cells;
  int repeat = 2;          // runs of a cell after one that warms up
  int64_t chunk = 8192;    // the most rows of a step
  double temperature = 1;  // of random weights: random tokens
  model::RecordingConfig recording;
  bool overlap = true;  // decoding steps are enqueued one ahead of the host
};

// Runs every cell on one runner and reports each as soon as it is measured.
void run_cells(Context& ctx, const model::Model& model, const CellOptions& options,
               const std::function<void(const CellResult&)>& report);

// Bytes per second, read and written, of copies within the device's memory; 0 on the CPU.
double copy_bytes_per_second(Context& ctx);

// "16x1024": batch size and prompt length. Throws invalid_argument, naming the option and the value.
Cell parse_cell(const std::string& option, const std::string& text);

}  // namespace sluice::apps
