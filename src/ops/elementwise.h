// SPDX-License-Identifier: Apache-2.0
// Element by element: residual addition, the activations of dense MLPs, embedding rows.
#pragma once

#include <span>

#include "base/context.h"
#include "ops/matrix.h"

namespace sluice::ops {

// x = D(x + y)
void add_to(Context& ctx, Matrix x, ConstMatrix y);

// gate = D(D(silu(gate)) * up): SiLU-gated MLP, rounded where the separate tensor operations round.
void silu_multiply(Context& ctx, Matrix gate, ConstMatrix up);

// x = D(D(max(x, 0))^2)
void relu_squared(Context& ctx, Matrix x);

// y[r] = table[ids[r]] in D. table bf16 or f32 [V, cols]. An id outside [0, V) is invalid_argument.
void embed(Context& ctx, std::span<const int32_t> ids, ConstMatrix table, Matrix y);

}  // namespace sluice::ops
