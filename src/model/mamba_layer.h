// SPDX-License-Identifier: Apache-2.0
// A Mamba-2 mixer.
#pragma once

#include "model/dense.h"

namespace sluice::model {

struct MambaLayer {
  ops::MambaShape shape;
  Dense in, out;            // in: [z | x, B, C | dt]
  Tensor conv;              // f32 [taps, channels]
  Tensor conv_bias;         // f32 [channels] or empty
  Tensor dt_bias, a, skip;  // f32 [heads]; a = -exp(A_log), skip = D
  ops::RmsNorm norm;        // over groups of inner
  size_t cache_layer = 0;

  void run(const ForwardContext& forward, const ops::LinearInput& x, ops::Matrix y) const;
  ops::Rounding rounding(int64_t rows) const { return in.rounding(rows); }
  int64_t weight_bytes() const { return in.weight_bytes() + out.weight_bytes() + conv.bytes() + norm.weight.bytes(); }
};

}  // namespace sluice::model
