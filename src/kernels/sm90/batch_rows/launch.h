// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/sm90/batch_rows/config.h"
#include "kernels/sm90/device.h"

namespace sluice::sm90 {

// Lets the operand's kernels use their shared memory; on the current device, before the first launch.
void allow_batch_rows(WeightOperand operand);
// What the current device runs at the same time.
BatchRoom device_batch_room(WeightOperand operand, int multiprocessors);
// Describes rows of `bytes` bytes, `stride` bytes apart, to the copy engine; `data` and `stride` are multiples of 16.
TensorMap rows_map(const void* data, int64_t rows, int64_t bytes, int64_t stride, int box_rows);
// At most kMaxBatchRows rows. parts of args are the choice's.
void launch_batch_rows(const BatchRowsArgs& args, WeightOperand operand, const BatchRowsChoice& choice,
                       int multiprocessors, Stream stream, bool pdl);

}  // namespace sluice::sm90
