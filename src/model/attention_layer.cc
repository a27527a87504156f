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
  o.run(forward, mixed, y);
}

}  // namespace sluice::model
