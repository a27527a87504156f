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

// Whether a call runs the kernels of one token, unless a tile is forced.
bool runs_one_token(const MoeSpec& spec, int multiprocessors, int64_t tokens);

// What the heuristic is asked for a call of `tokens`; with spec.deterministic the answer does not depend on it.
GemmProblem gemm_problem(const MoeSpec& spec, int64_t tokens);
// For `sluice explain`: tile, splits and why, at spec.tokens (128 when it has none). Needs no device.
std::string explain_choice(const MoeSpec& spec, int multiprocessors);

// GEMM1's weights: M-tiles for every k-block of GEMM2's rows, which some tile must write.
WeightShape first_shape(const MoeSpec& spec);
WeightShape second_shape(const MoeSpec& spec);

// NVFP4 per token rounds the activation to the bf16 of the run before it looks for the largest value of a row. So GEMM1
// writes bf16 rows to where GEMM2 reads them, and they are rounded in place.
bool rounds_in_place(const MoeSpec& spec);
// Whether the block that completes a tile rounds its rows of GEMM2, where a row has a scale of its own and that is
// quick. Then one launch has both GEMMs. Else a kernel between two launches rounds them.
bool completes_rows(const MoeSpec& spec, WeightOperand operand, int max_n);
// Whether a call of `tokens` tokens that can do so does well to.
bool completing_pays(const MoeSpec& spec, int64_t tokens);

}  // namespace sluice::sm90
