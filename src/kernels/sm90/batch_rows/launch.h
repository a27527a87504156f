// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/sm90/batch_rows/config.h"
#include "kernels/sm90/device.h"

namespace sluice::sm90 {

// Lets the operand's kernels use their shared memory; on the current device, before the first launch.
void allow_batch_rows(WeightOperand operand);
// What the current device runs at the same time.
BatchRoom device_batch_room(WeightOperand operand, int multiprocessors);
// parts of args are the choice's.
void launch_batch_rows(const BatchRowsArgs& args, WeightOperand operand, const BatchRowsChoice& choice,
                       int multiprocessors, Stream stream, bool pdl);

}  // namespace sluice::sm90
