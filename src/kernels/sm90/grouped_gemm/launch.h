// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/sm90/device.h"
#include "kernels/sm90/grouped_gemm/args.h"
#include "kernels/sm90/grouped_gemm/heuristic.h"

namespace sluice::sm90 {

// On the current device, once before the launches of this operand's tiles there: allows their shared memory.
void allow_grouped_gemm(WeightOperand operand);

// Launches as many blocks as `multiprocessors` multiprocessors hold. A larger number than the device has gives the same
// result, but no speed.
void launch_grouped_gemm(const GroupedGemmArgs& args, const Instance& instance, int multiprocessors, Stream stream,
                         bool pdl);

}  // namespace sluice::sm90
