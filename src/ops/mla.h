// SPDX-License-Identifier: Apache-2.0
// The shape of multi-head latent attention (DeepSeek-V2 and V3).
#pragma once

#include <cstdint>

namespace sluice::ops {

struct MlaShape {
  int64_t heads = 0, nope = 0, rope = 0, value = 0, latent = 0;
  int64_t query() const { return nope + rope; }
  int64_t cached() const { return latent + rope; }
};

}  // namespace sluice::ops
