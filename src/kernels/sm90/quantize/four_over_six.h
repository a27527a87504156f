// SPDX-License-Identifier: Apache-2.0
// NVFP4 with the better of two scales for each block (format/four_over_six.h), bit for bit the host's.
#pragma once

#include "format/four_over_six.h"
#include "kernels/sm90/quantize/tensor.h"

namespace sluice::sm90 {

// args.coding: nvfp4 or nvfp4_token.
void launch_quantize_four_over_six(const QuantizeArgs& args, const format::FourOverSix& how, Stream stream, bool pdl);

}  // namespace sluice::sm90
