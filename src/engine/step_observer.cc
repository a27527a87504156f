// SPDX-License-Identifier: Apache-2.0
#include "engine/step_observer.h"

#include <algorithm>

namespace sluice::engine {

void StepObserver::begin_step(int64_t rows) {
  rows_ = rows;
  spans.clear();
  last_layer_ = Clock::now();
  if (recording_) counts_.tokens += rows;
}

// Index 0 is the embedding, i + 1 what layer i leaves.
void StepObserver::layer(int index, ops::ConstMatrix) {
  const Clock::time_point now = Clock::now();
  if (timed) spans.push_back({index == 0 ? "embedding" : fmt::format("layer {}", index - 1), last_layer_, now});
  last_layer_ = now;
}

void StepObserver::moe(const model::MoeView& view) {
  const auto at = static_cast<size_t>(view.layer);
  // A draft head's layer comes after the model's and makes no tokens that count.
  if (at >= routes_.size() || view.input.rows != rows_) return;
  routes_[at].assign(view.ids.begin(), view.ids.end());
  top_k_ = view.ids.size() / static_cast<size_t>(std::max<int64_t>(rows_, 1));
  if (!recording_) return;
  std::vector<int64_t>& counts = counts_.layers[at];
  counts.resize(std::max(counts.size(), static_cast<size_t>(view.router_logits.cols)));
  for (const int32_t id : view.ids) ++counts[static_cast<size_t>(id)];
}

std::span<const int32_t> StepObserver::routes(int64_t row) {
  row_.assign(routes_.size() * top_k_, -1);
  for (size_t layer = 0; layer < routes_.size(); ++layer) {
    if (routes_[layer].empty()) continue;
    const auto from = routes_[layer].begin() + row * static_cast<std::ptrdiff_t>(top_k_);
    std::copy_n(from, top_k_, row_.begin() + static_cast<std::ptrdiff_t>(layer * top_k_));
  }
  return row_;
}

void StepObserver::record(bool on) {
  if (on) counts_ = {0, std::vector<std::vector<int64_t>>(routes_.size())};
  recording_ = on;
}

}  // namespace sluice::engine
