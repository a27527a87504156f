// SPDX-License-Identifier: Apache-2.0
// THE LIST of expert activations. A new one adds its header with one policy type, its enumerator and name in kind.h,
// and its row in the type list (docs/adding.md).
//
// A policy A: A::kId, A::kGated, A::apply(up, gate, params) in float32, for host and device. Non-gated ones take their
// only input as `up` and read neither gate nor params; only Swiglu reads params.
#pragma once

#include "activation/geglu.h"
#include "activation/gelu.h"
#include "activation/identity.h"
#include "activation/kind.h"
#include "activation/params.h"
#include "activation/relu2.h"
#include "activation/silu.h"
#include "activation/swiglu.h"
#include "base/typelist.h"

namespace sluice::activation {

using Activations = TypeList<Gelu, Silu, Swiglu, Geglu, Relu2, GegluTanh, Identity>;

constexpr bool is_gated(Activation a) {
  bool gated = false;
  Activations::visit(a, [&]<class A> { gated = A::kGated; });
  return gated;
}

// Whether alpha, beta and limit mean anything; where they do not, giving them is refused.
constexpr bool takes_params(Activation a) { return a == Activation::swiglu; }

// Throws unless each given array (null: not given) of `experts` values suits the activation: none but for swiglu, alpha
// and beta finite, limit positive (infinity: no clamp).
void check_params(Activation a, const float* alpha, const float* beta, const float* limit, int64_t experts);

}  // namespace sluice::activation
