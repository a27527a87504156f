// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "routing/topk.h"

namespace sluice::routing {

// Chooses the expert of the largest logit; its weight is the sigmoid of that logit.
struct Llama4 : TopkSigmoid {
  static constexpr Method kId = Method::llama4;
};

}  // namespace sluice::routing
