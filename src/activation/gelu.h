// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>

#include "activation/kind.h"
#include "activation/params.h"
#include "base/hd.h"

namespace sluice::activation {

// x * Phi(x). erfc(-z) instead of 1 + erf(z): the sum cancels for negative x (10 % relative error at -5).
HD inline float gelu_erf(float x) { return 0.5f * x * erfcf(-0.70710678118654752f * x); }

// 0.5 x (1 + tanh(u)) = x / (1 + exp(-2u)), u = sqrt(2/pi) (x + 0.044715 x^3), for the same reason.
HD inline float gelu_tanh(float x) {
  const float u = 0.7978845608028654f * (x + 0.044715f * (x * x * x));
  return x / (1.0f + expf(-2.0f * u));
}

struct Gelu {
  static constexpr Activation kId = Activation::gelu;
  static constexpr bool kGated = false;
  HD static float apply(float x, float /*gate*/, const Params& /*p*/) { return gelu_erf(x); }
};

}  // namespace sluice::activation
