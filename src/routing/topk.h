// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "routing/method.h"

namespace sluice::routing {

// Top-k of the logits; the weights are the logits themselves and may be negative.
struct Topk {
  static constexpr Method kId = Method::topk;
  static constexpr bool kBias = false, kRowSoftmax = false;
  HD static float key(float x, float /*bias*/, RowSoftmax /*row*/) { return x; }
  HD static float term(float x, float /*best*/, RowSoftmax /*row*/) { return x; }
  HD static float weight(float term, float /*sum*/, const Params& /*p*/) { return term; }
};

// Top-k of the logits; the weights are their sigmoids. Chooses unlike `sigmoid` only where sigmoids saturate and tie.
struct TopkSigmoid : Topk {
  static constexpr Method kId = Method::topk_sigmoid;
  HD static float term(float x, float /*best*/, RowSoftmax /*row*/) { return routing::sigmoid(x); }
};

}  // namespace sluice::routing
