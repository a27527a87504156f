// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "routing/method.h"

namespace sluice::routing {

// The bias takes part in the choice only; weights are sigmoids over their sum, times the scale.
struct Minimax2 {
  static constexpr Method kId = Method::minimax2;
  static constexpr bool kBias = true, kRowSoftmax = false;
  HD static float key(float x, float bias, RowSoftmax /*row*/) { return sigmoid(x) + bias; }
  HD static float term(float x, float /*best*/, RowSoftmax /*row*/) { return sigmoid(x); }
  HD static float weight(float term, float sum, const Params& p) { return term * p.scale / (sum + kSumEpsilon); }
};

}  // namespace sluice::routing
