// SPDX-License-Identifier: Apache-2.0
#include "model/dense.h"

namespace sluice::model {

Dense::Dense(std::vector<std::string> names, std::shared_ptr<const ops::Linear> linear) : rows_(linear->outputs()) {
  products_.push_back({std::move(names), std::move(linear)});
}

void Dense::append(Dense next) {
  for (Product& p : next.products_) products_.push_back(std::move(p));
  rows_ += next.rows_;
}

ops::Rounding Dense::rounding(int64_t rows) const {
  for (const Product& p : products_)
    if (const ops::Rounding r = p.linear->rounding(rows)) return r;
  return {};
}

void Dense::run(const ForwardContext& forward, const ops::LinearInput& x, ops::Matrix y) const {
  ops::Workspace::Scope scope(forward.ops.workspace());
  if (forward.observer != nullptr && forward.observer->activations() != nullptr) {
    const float amax = forward.ops.amax(x.rows);
    for (const Product& p : products_)
      for (const std::string& name : p.names) forward.observer->activations()->observe_amax(name, amax);
  }
  int64_t first = 0;
  for (const Product& p : products_) {
    const int64_t bytes = p.linear->workspace_bytes(x.rows.rows), rows = p.linear->outputs();
    p.linear->run(forward.ops.ctx(), x, y.columns(first, rows), forward.ops.workspace().take_bytes(bytes), bytes);
    first += rows;
  }
}

int64_t Dense::weight_bytes() const {
  int64_t bytes = 0;
  for (const Product& p : products_) bytes += p.linear->weight_bytes();
  return bytes;
}

}  // namespace sluice::model
