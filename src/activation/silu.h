// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>

#include "activation/kind.h"
#include "activation/params.h"
#include "base/hd.h"

namespace sluice::activation {

// x * sigmoid(scale * x). One division; exp overflows to infinity for very negative x and the result is then -0.
HD inline float silu(float x, float scale = 1.0f) { return x / (1.0f + expf(-scale * x)); }

struct Silu {
  static constexpr Activation kId = Activation::silu;
  static constexpr bool kGated = false;
  HD static float apply(float x, float /*gate*/, const Params& /*p*/) { return silu(x); }
};

}  // namespace sluice::activation
