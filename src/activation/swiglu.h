// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "activation/silu.h"

namespace sluice::activation {

// (clamp(up, -limit, limit) + beta) * g * sigmoid(alpha * g), g = min(gate, limit), of dequantised values
// (docs/numerics.md, Activations). The defaults change no bit of up * silu(gate). Comparisons are written so that NaN
// passes through.
struct Swiglu {
  static constexpr Activation kId = Activation::swiglu;
  static constexpr bool kGated = true;
  HD static float apply(float up, float gate, const Params& p) {
    const float g = gate > p.limit ? p.limit : gate;
    const float u = up > p.limit ? p.limit : up < -p.limit ? -p.limit : up;
    return silu(g, p.alpha) * (u + p.beta);
  }
};

}  // namespace sluice::activation
