// SPDX-License-Identifier: Apache-2.0
// A spec in the kernels' terms: whether they run it, the shapes of its weights, the tile for a number of tokens. Needs
// no device.
#pragma once

#include <string>

#include "base/support.h"
#include "kernels/sm90/grouped_gemm/heuristic.h"
#include "kernels/sm90/layout.h"
#include "spec/moe_spec.h"

namespace sluice::sm90 {

// What these kernels cannot do, in a sentence; says nothing about the device.
Support supports_spec(const MoeSpec& spec);

// What the heuristic is asked for a call of `tokens`; with spec.deterministic the answer does not depend on it.
GemmProblem gemm_problem(const MoeSpec& spec, int64_t tokens);
// For `sluice explain`: tile, splits and why, at spec.tokens (128 when it has none). Needs no device.
std::string explain_choice(const MoeSpec& spec, int multiprocessors);

// GEMM1's weights: row tiles for every slab of GEMM2's rows, which some tile must write.
WeightShape first_shape(const MoeSpec& spec);
WeightShape second_shape(const MoeSpec& spec);

// With spec.deterministic neither the tile nor the order of sums may follow the batch.
GemmForce fixed_force(const MoeSpec& spec, GemmForce force);

}  // namespace sluice::sm90
