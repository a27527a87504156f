// SPDX-License-Identifier: Apache-2.0
// Repacking of the operands that the GEMM decodes.
#pragma once

#include "kernels/sm90/repack/repack.h"

namespace sluice::sm90 {

// pdl: the launch before it in the stream repacks another part of the same weights.
void launch_packed(const RepackArgs& args, Stream stream, bool pdl);

}  // namespace sluice::sm90
