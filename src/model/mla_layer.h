// SPDX-License-Identifier: Apache-2.0
// Multi-head latent attention (DeepSeek-V2 and V3).
#pragma once

#include "model/dense.h"

namespace sluice::model {

struct MlaLayer {
  ops::MlaShape shape;
  int64_t q_rank = 0;    // 0: q comes straight from the hidden state
  Dense down;            // [q_a | kv_a], q_rank + latent + rope rows; without q_rank kv_a alone
  ops::RmsNorm q_norm;   // over q_rank
  Dense q;               // q_b on the rows of q_a, or q_proj on the hidden state
  ops::RmsNorm kv_norm;  // over the latent part
  Tensor kv_b;  // bf16 or f32 [heads * (nope + value), latent]; dequantised: it is applied to queries and outputs
  Dense o;
  ops::RopeLayout layout = ops::RopeLayout::interleaved;
  float scale = 1;
  size_t cache_layer = 0;

  void run(const ForwardContext& forward, const ops::LinearInput& x, ops::Matrix y) const;
  ops::Rounding rounding(int64_t rows) const { return down.rounding(rows); }
  CacheShape::Attention cache() const { return {1, shape.cached(), 0}; }
  int64_t weight_bytes() const { return down.weight_bytes() + q.weight_bytes() + kv_b.bytes() + o.weight_bytes(); }
};

}  // namespace sluice::model
