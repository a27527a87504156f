// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/sm90/device.h"
#include "kernels/sm90/few_rows/config.h"

namespace sluice::sm90 {

// Lets the operand's kernels use their shared memory; on the current device, before the first launch.
void allow_few_rows(WeightOperand operand);
// At most kMaxFewRows rows; splits: a power of two up to kMaxFewRowsSplits.
void launch_few_rows(const FewRowsArgs& args, WeightOperand operand, int multiprocessors, Stream stream, bool pdl);

}  // namespace sluice::sm90
