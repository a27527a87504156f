// SPDX-License-Identifier: Apache-2.0
// Grouped-query attention: Qwen3 (norms on q and k, rotary embedding) and NemotronH (neither).
#pragma once

#include "model/config.h"
#include "model/weight_reader.h"

namespace sluice::model {

struct AttentionLayer {
  ops::QkvLayout layout;
  Dense qkv, o;
  size_t cache_layer = 0;
  float key_scale = 1, value_scale = 1;  // of an e4m3 cache (ops::Pages::scale)

  void run(const ForwardContext& forward, const ops::LinearInput& x, ops::Matrix y) const;
  ops::Rounding rounding(int64_t rows) const { return qkv.rounding(rows); }
  CacheShape::Attention cache() const { return {layout.kv_heads, layout.head_dim, layout.head_dim}; }
  int64_t weight_bytes() const { return qkv.weight_bytes() + o.weight_bytes(); }
};

// The projections under `module` ("model.layers.3.self_attn."), and the scales of the cache; norms and rotary embedding
// are the families' own.
AttentionLayer load_attention(const WeightReader& s, const CommonConfig& c, int64_t head_dim,
                              const std::string& module);

}  // namespace sluice::model
