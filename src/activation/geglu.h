// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "activation/gelu.h"

namespace sluice::activation {

// up * gelu(gate): the erf form, and the tanh form that Blackwell's fused kernels compute.
struct Geglu {
  static constexpr Activation kId = Activation::geglu;
  static constexpr bool kGated = true;
  HD static float apply(float up, float gate, const Params& /*p*/) { return up * gelu_erf(gate); }
};

struct GegluTanh {
  static constexpr Activation kId = Activation::geglu_tanh;
  static constexpr bool kGated = true;
  HD static float apply(float up, float gate, const Params& /*p*/) { return up * gelu_tanh(gate); }
};

}  // namespace sluice::activation
