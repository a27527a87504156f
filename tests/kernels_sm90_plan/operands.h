// SPDX-License-Identifier: Apache-2.0
// Every operand of the products of rows, and the copies that a row of its weights takes.
#pragma once

#include "base/math.h"
#include "kernels/sm90/few_rows/heuristic.h"

namespace sluice::sm90 {

inline constexpr WeightOperand kOperands[] = {
    WeightOperand::bf16,  WeightOperand::fp8,   WeightOperand::fp8_block, WeightOperand::mxfp8,
    WeightOperand::nvfp4, WeightOperand::mxfp4, WeightOperand::fp8_f32,   WeightOperand::fp8_block_f32};

inline int copies(const WeightShape& s) { return ceil_div(s.k_blocks(), k_blocks_per_copy(s.operand)); }

}  // namespace sluice::sm90
