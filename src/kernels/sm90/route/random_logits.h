// SPDX-License-Identifier: Apache-2.0
// Random logits of all expert layers of a forward pass (routing/random_logits.h).
#pragma once

#include "kernels/sm90/device.h"
#include "kernels/sm90/rows.h"

namespace sluice::sm90 {

struct RandomLogitsArgs {
  const int32_t* positions;  // [rows]
  int64_t rows, layers;
  RowsView logits;  // [layers * rows, experts], a layer after the other
  int experts;
};
void launch_random_logits(const RandomLogitsArgs& args, Stream stream, bool pdl);

}  // namespace sluice::sm90
