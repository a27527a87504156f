// SPDX-License-Identifier: Apache-2.0
// Logits of a random order of the experts (routing/random_order.h).
#pragma once

#include "kernels/sm90/device.h"
#include "kernels/sm90/rows.h"

namespace sluice::sm90 {

struct RandomOrderArgs {
  uint64_t seed;
  const int32_t* positions;  // [rows]
  RowsView logits;           // [rows, experts]
  int64_t rows;
  int experts;  // at most 4096
};
void launch_random_order(const RandomOrderArgs& args, Stream stream, bool pdl);

}  // namespace sluice::sm90
