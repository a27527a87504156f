// SPDX-License-Identifier: Apache-2.0
// NaN codes in FP8 weights, which loaders refuse.
#pragma once

#include "kernels/sm90/device.h"

namespace sluice::sm90 {

struct FindNanArgs {
  const uint8_t* codes;  // e4m3
  int64_t count;
  int32_t* found;  // [1], 0 before: 1 when one of them is NaN
};
void launch_find_nan(const FindNanArgs& args, Stream stream);

}  // namespace sluice::sm90
