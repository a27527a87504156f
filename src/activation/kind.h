// SPDX-License-Identifier: Apache-2.0
// The names of the activations. Numbers are those of the published ActivationType enum.
#pragma once

#include <array>
#include <cstdint>

#include "base/named.h"

namespace sluice::activation {

enum class Activation : uint8_t {
  gelu = 0,        // non-gated, erf
  silu = 2,        // non-gated
  swiglu = 3,      // up * silu(gate); alpha, beta, limit allowed
  geglu = 4,       // up * gelu_erf(gate)
  relu2 = 6,       // non-gated, max(x, 0)^2
  geglu_tanh = 8,  // up * gelu_tanh(gate)
  identity = 9,    // non-gated
};

inline constexpr std::array<Named<Activation>, 7> kActivations{{{Activation::gelu, "gelu"},
                                                                {Activation::silu, "silu"},
                                                                {Activation::swiglu, "swiglu"},
                                                                {Activation::geglu, "geglu"},
                                                                {Activation::relu2, "relu2"},
                                                                {Activation::geglu_tanh, "geglu_tanh"},
                                                                {Activation::identity, "identity"}}};

}  // namespace sluice::activation
