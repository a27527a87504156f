// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "routing/topk.h"

namespace sluice::routing {

// Top-1 of the logits, its sigmoid.
struct Llama4 : TopkSigmoid {
  static constexpr Method kId = Method::llama4;
};

}  // namespace sluice::routing
