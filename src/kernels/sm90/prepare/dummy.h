// SPDX-License-Identifier: Apache-2.0
// Random weights, the same bits as the host's (weights/dummy.h).
#pragma once

#include "base/bf16.h"
#include "kernels/sm90/device.h"
#include "weights/dummy.h"

namespace sluice::sm90 {

struct DummyArgs {
  bf16_t* out;  // [matrices, size]
  int64_t matrices, size;
  int64_t first, stride;  // value i of matrix e is value e * stride + first + i of the range
  weights::DummyRange range;
};
void launch_dummy(const DummyArgs& args, Stream stream);

}  // namespace sluice::sm90
