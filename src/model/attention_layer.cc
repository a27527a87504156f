// SPDX-License-Identifier: Apache-2.0
#include "model/attention_layer.h"

#include <cmath>

namespace sluice::model {

void AttentionLayer::run(const ForwardContext& forward, const ops::LinearInput& x, ops::Matrix y) const {
  ops::Workspace::Scope scope(forward.ops.workspace());
  const int64_t width = layout.heads * layout.head_dim;
  const ops::Matrix projected = forward.matrix(qkv.rows()), mixed = forward.matrix(width);
  qkv.run(forward, x, projected);
  ops::Pages keys = forward.cache.keys(cache_layer), values = forward.cache.values(cache_layer);
  keys.scale = key_scale;
  values.scale = value_scale;
  const auto scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(layout.head_dim)));
  forward.ops.norm_rope_attention(forward.batch, layout, forward.angles, projected, keys, values,
                                  {scale, forward.row_invariant}, mixed);
  ops::LinearInput rows = mixed;
  rows.bytes_ahead = 2 * forward.batch.sequences * forward.batch.longest_context * layout.kv_heads * layout.head_dim *
                     bytes_of(keys.dtype);
  o.run(forward, rows, y);
}

AttentionLayer load_attention(const WeightReader& s, const CommonConfig& c, int64_t head_dim,
                              const std::string& module) {
  const Dim hidden{c.hidden, "hidden_size"};
  const Dim wide{c.heads * head_dim, "num_attention_heads * head_dim"};
  const Dim narrow{c.kv_heads * head_dim, "num_key_value_heads * head_dim"};
  const Bias bias = c.attention_bias ? Bias::present : Bias::none;
  AttentionLayer a;
  a.qkv = s.dense({{module + "q_proj", wide}, {module + "k_proj", narrow}, {module + "v_proj", narrow}}, hidden, bias);
  a.o = s.dense(module + "o_proj", hidden, wide, bias);
  a.key_scale = s.cache_scale(module, "k");
  a.value_scale = s.cache_scale(module, "v");
  a.layout.heads = c.heads;
  a.layout.kv_heads = c.kv_heads;
  a.layout.head_dim = head_dim;
  return a;
}

}  // namespace sluice::model
