// SPDX-License-Identifier: Apache-2.0
// Multi-head latent attention (DeepSeek-V2 and V3).
#pragma once

#include <optional>

#include "model/dense.h"
#include "model/norm.h"
#include "ops/mla.h"
#include "ops/rope.h"

namespace sluice::model {

struct MlaLayer {
  ops::MlaShape shape;
  std::optional<Dense> q_a;  // none: q_b is q_proj, straight from the hidden state
  Norm q_norm;
  Dense q_b;
  Dense kv_a;    // [latent + rope, hidden]
  Norm kv_norm;  // over the latent part
  Tensor kv_b;   // bf16 or f32 [heads * (nope + value), latent]; dequantised: it is applied to queries and outputs
  Dense o;
  ops::RopeLayout layout = ops::RopeLayout::interleaved;
  float scale = 1;
  size_t cache_layer = 0;

  void run(const Step& step, ops::ConstMatrix x, ops::Matrix y) const;
  CacheShape::Attention cache() const { return {1, shape.cached(), 0}; }
  int64_t weight_bytes() const {
    return (q_a ? q_a->weight_bytes() : 0) + q_b.weight_bytes() + kv_a.weight_bytes() + kv_b.bytes() + o.weight_bytes();
  }
};

}  // namespace sluice::model
