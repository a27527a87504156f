// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "routing/method.h"

namespace sluice::routing {

// Softmax over all experts; the chosen keep those values, not renormalised. The choice compares the rounded softmax
// values, so logits that underflow to the same value tie.
struct Softmax {
  static constexpr Method kId = Method::softmax;
  static constexpr bool kBias = false, kRowSoftmax = true;
  HD static float key(float x, float /*bias*/, RowSoftmax row) { return expf(x - row.max) / row.sum; }
  HD static float term(float x, float /*best*/, RowSoftmax row) { return expf(x - row.max) / row.sum; }
  HD static float weight(float term, float /*sum*/, const Params& /*p*/) { return term; }
};

}  // namespace sluice::routing
