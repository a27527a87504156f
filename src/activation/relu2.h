// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "activation/kind.h"
#include "activation/params.h"
#include "base/hd.h"

namespace sluice::activation {

// max(x, 0)^2; NaN passes through.
struct Relu2 {
  static constexpr Activation kId = Activation::relu2;
  static constexpr bool kGated = false;
  HD static float apply(float x, float /*gate*/, const Params& /*p*/) {
    const float positive = x < 0.0f ? 0.0f : x;
    return positive * positive;
  }
};

}  // namespace sluice::activation
