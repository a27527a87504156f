// SPDX-License-Identifier: Apache-2.0
// Dense feed-forward layers and shared experts: down(silu(gate x) * up x), or down(relu(up x)^2) without a gate.
#pragma once

#include "model/dense.h"

namespace sluice::model {

struct Mlp {
  bool gated = false;  // not: relu squared
  Dense up;            // [gate | up], or up alone
  Dense down;

  void run(const ForwardContext& forward, const ops::LinearInput& x, ops::Matrix y) const;
  ops::Rounding rounding(int64_t rows) const { return up.rounding(rows); }
  int64_t weight_bytes() const { return up.weight_bytes() + down.weight_bytes(); }
};

}  // namespace sluice::model
