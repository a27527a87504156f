// SPDX-License-Identifier: Apache-2.0
// Weights from one number format to another, in parallel: BF16 checkpoints quantised while they are loaded, and
// `sluice quantize`.
#pragma once

#include "device/context.h"
#include "weights/expert_weights.h"

namespace sluice::weights {

// w [E, N, K] of any format -> `format`, by the quantisers of format/quantize_weights.h on w's values: one scale per
// matrix (fp8_tensor, NVFP4's global) is taken over the whole [N, K]. The result does not depend on the number of
// threads. Throws invalid_argument for an odd K with 4-bit codes. make_codes: as in make_quant_tensor().
QuantTensor quantize(Context& ctx, format::Format format, const QuantTensor& w,
                     const MakeTensor& make_codes = make_tensor);

// up, gate and down; each keeps its own scales. Everything else is passed on.
ExpertWeights quantize(Context& ctx, format::Format format, const ExpertWeights& w,
                       const MakeTensor& make_codes = make_tensor);

}  // namespace sluice::weights
