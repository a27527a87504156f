// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "routing/method.h"

namespace sluice::routing {

// Top-k of the sigmoids, which are the weights.
struct Sigmoid {
  static constexpr Method kId = Method::sigmoid;
  static constexpr bool kBias = false, kRowSoftmax = false;
  HD static float key(float x, float /*bias*/, RowSoftmax /*row*/) { return routing::sigmoid(x); }
  HD static float term(float x, float /*best*/, RowSoftmax /*row*/) { return routing::sigmoid(x); }
  HD static float weight(float term, float /*sum*/, const Params& /*p*/) { return term; }
};

// The same over their sum, unless norm_topk is off. Here the epsilon is a lower bound of the sum, not an addend; a sum
// that is NaN stays.
struct SigmoidRenorm : Sigmoid {
  static constexpr Method kId = Method::sigmoid_renorm;
  HD static float weight(float term, float sum, const Params& p) {
    return p.renormalize ? term / (sum <= kSumEpsilon ? kSumEpsilon : sum) : term;
  }
};

}  // namespace sluice::routing
