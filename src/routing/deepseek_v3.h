// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "routing/minimax2.h"

namespace sluice::routing {

// As minimax2; with groups > 1 only the experts of the best top_groups groups may be chosen (docs/numerics.md,
// Routing).
struct DeepseekV3 : Minimax2 {
  static constexpr Method kId = Method::deepseek_v3;
};

// What a bias adds to a score. The choice among groups reads it in the output's type, even if it is given as float32.
HD inline float choice_bias(float bias, const Params& p) { return p.groups > 1 && p.bf16 ? round_to_bf16(bias) : bias; }

}  // namespace sluice::routing
