// SPDX-License-Identifier: Apache-2.0
#include "model/attention_layer.h"

#include <cmath>

namespace sluice::model {

void AttentionLayer::run(const Step& step, const ops::LinearInput& x, ops::Matrix y) const {
  ops::Workspace::Scope scope(step.ops.workspace());
  const int64_t width = layout.heads * layout.head_dim;
  const ops::Matrix projected = step.matrix(qkv.rows()), mixed = step.matrix(width);
  qkv.run(step, x, projected);
  ops::Pages keys = step.cache.keys(cache_layer), values = step.cache.values(cache_layer);
  keys.scale = key_scale;
  values.scale = value_scale;
  step.ops.norm_rope_store(step.batch, layout, step.angles, projected, keys, values);
  const auto scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(layout.head_dim)));
  step.ops.attention(step.batch, projected.columns(0, width), keys, values, layout.head_dim,
                     {scale, step.row_invariant}, mixed);
  o.run(step, mixed, y);
}

}  // namespace sluice::model
