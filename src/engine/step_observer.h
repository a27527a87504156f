// SPDX-License-Identifier: Apache-2.0
// What the engine wants to know of the inside of a step, when somebody asks: the experts of every row, how often each
// expert was chosen, and how long each layer took. Models on the host only.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "engine/request.h"
#include "model/observer.h"

namespace sluice::engine {

// A part of a step and when it ran. Spans are in the order of their ends, and one may lie in another.
struct Span {
  std::string name;
  Clock::time_point begin, end;
};
struct StepTrace {
  int64_t step = 0, rows = 0, sequences = 0;
  std::vector<Span> spans;
};

// How often each expert was chosen since the recording began.
struct ExpertCounts {
  int64_t tokens = 0;                        // rows of the model
  std::vector<std::vector<int64_t>> layers;  // [layers][experts]; empty for a layer without experts
};

class StepObserver final : public model::Observer {
 public:
  explicit StepObserver(int64_t layers) : routes_(static_cast<size_t>(layers)) {}

  void begin_step(int64_t rows);
  void layer(int index, ops::ConstMatrix hidden) override;
  void moe(const model::MoeView& view) override;

  // The experts of a row of the last step, [layers, K]; -1 in layers without experts.
  std::span<const int32_t> routes(int64_t row);

  void record(bool on);  // counts begin at 0
  bool recording() const { return recording_; }
  const ExpertCounts& counts() const { return counts_; }

  std::vector<Span> spans;  // of the step, while `timed`
  bool timed = false;

 private:
  std::vector<std::vector<int32_t>> routes_;  // [layers][rows, K]; empty: a layer without experts
  std::vector<int32_t> row_;
  int64_t rows_ = 0;
  size_t top_k_ = 0;
  Clock::time_point last_layer_;
  bool recording_ = false;
  ExpertCounts counts_;
};

}  // namespace sluice::engine
