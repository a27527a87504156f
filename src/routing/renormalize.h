// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "routing/method.h"

namespace sluice::routing {

// Top-k of the logits, softmax over the chosen.
struct Renormalize {
  static constexpr Method kId = Method::renormalize;
  static constexpr bool kBias = false, kRowSoftmax = false;
  HD static float key(float x, float /*bias*/, RowSoftmax /*row*/) { return x; }
  HD static float term(float x, float best, RowSoftmax /*row*/) { return expf(x - best); }
  HD static float weight(float term, float sum, const Params& /*p*/) { return term / sum; }
};

// Softmax, top-k, renormalise: in exact arithmetic the same, and published as the same kernel.
struct RenormalizeNaive : Renormalize {
  static constexpr Method kId = Method::renormalize_naive;
};

}  // namespace sluice::routing
