// SPDX-License-Identifier: Apache-2.0
// How much memory a checkpoint's weights take once they are loaded, from the headers of its files alone.
#pragma once

#include "io/checkpoint.h"
#include "weights/online.h"

namespace sluice::weights {

// Bytes of codes and scales, quantised as `online` says (null: as stored), with those of a tied head that is quantised
// beside its embedding. Kernels pad sizes that are no multiples of
// their tiles; that comes on top.
int64_t loaded_bytes(const io::Checkpoint& checkpoint, const OnlinePolicy* online);

}  // namespace sluice::weights
