// SPDX-License-Identifier: Apache-2.0
// Dense feed-forward layers and shared experts: down(silu(gate x) * up x), or down(relu(up x)^2) without a gate.
#pragma once

#include <optional>

#include "model/dense.h"

namespace sluice::model {

struct Mlp {
  std::optional<Dense> gate;  // none: relu squared
  Dense up, down;

  void run(const Step& step, ops::ConstMatrix x, ops::Matrix y) const;
  int64_t weight_bytes() const;
};

}  // namespace sluice::model
