// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/sm90/device.h"
#include "kernels/sm90/grouped_gemm/args.h"
#include "kernels/sm90/grouped_gemm/heuristic.h"

namespace sluice::sm90 {

void launch_grouped_gemm(const GroupedGemmArgs& args, const Instance& instance, Stream stream, bool pdl);

}  // namespace sluice::sm90
