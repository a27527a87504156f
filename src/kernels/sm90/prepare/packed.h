// SPDX-License-Identifier: Apache-2.0
// Preparation of the operands that the GEMM decodes.
#pragma once

#include "kernels/sm90/prepare/prepare.h"

namespace sluice::sm90 {

// pdl: the launch before it in the stream is of the same preparation.
void launch_packed(const PrepareArgs& args, Stream stream, bool pdl);

}  // namespace sluice::sm90
