// SPDX-License-Identifier: Apache-2.0
// Grouped-query attention: Qwen3 (norms on q and k, rotary embedding) and NemotronH (neither).
#pragma once

#include "model/dense.h"
#include "model/norm.h"

namespace sluice::model {

struct AttentionLayer {
  Dense q, k, v, o;
  Norm q_norm, k_norm;  // over each head; empty: none
  bool rotary = false;  // halves layout over the whole head
  int64_t heads = 0, kv_heads = 0, head_dim = 0;
  size_t cache_layer = 0;

  void run(const Step& step, ops::ConstMatrix x, ops::Matrix y) const;
  CacheShape::Attention cache() const { return {kv_heads, head_dim, head_dim}; }
  int64_t weight_bytes() const { return q.weight_bytes() + k.weight_bytes() + v.weight_bytes() + o.weight_bytes(); }
};

}  // namespace sluice::model
