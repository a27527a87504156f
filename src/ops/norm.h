// SPDX-License-Identifier: Apache-2.0
// RMSNorm in its three forms: a whole row, every head of a row, groups of a row after a gate (Mamba-2).
#pragma once

#include "base/context.h"
#include "ops/matrix.h"

namespace sluice::ops {

// y[r] = D(weight * D(x[r] * rsqrt(mean(x[r]^2) + eps))): Hugging Face rounds before the weight as well as after.
// weight float32 [cols]. y may be x.
void rms_norm(Context& ctx, ConstMatrix x, const float* weight, float eps, Matrix y);

// The same over each run of `head_dim` columns by itself; weight [head_dim]. q_norm and k_norm of Qwen3.
void rms_norm_heads(Context& ctx, Matrix x, int64_t head_dim, const float* weight, float eps);

// x float32 [rows, cols]; gate D. v = x * silu(gate); each group of cols / groups values is normalised by itself;
// y = D(v * rsqrt(mean + eps) * weight). Everything before the last rounding in float32.
void gated_group_rms_norm(Context& ctx, ConstMatrix x, ConstMatrix gate, int64_t groups, const float* weight, float eps,
                          Matrix y);

}  // namespace sluice::ops
