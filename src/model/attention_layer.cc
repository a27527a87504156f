// SPDX-License-Identifier: Apache-2.0
#include "model/attention_layer.h"

#include <cmath>

#include "ops/attention.h"
#include "ops/rope.h"

namespace sluice::model {

void AttentionLayer::run(const Step& step, ops::ConstMatrix x, ops::Matrix y) const {
  ops::Workspace::Scope scope(step.workspace);
  const ops::Matrix queries = step.matrix(heads * head_dim);
  const ops::Matrix keys = step.matrix(kv_heads * head_dim), values = step.matrix(kv_heads * head_dim);
  q.run(step, x, queries);
  k.run(step, x, keys);
  v.run(step, x, values);
  if (q_norm) q_norm.run_heads(step, queries);
  if (k_norm) k_norm.run_heads(step, keys);
  if (rotary) {
    const auto layout = ops::RopeLayout::halves;
    ops::rope(step.ctx, queries, head_dim, 0, head_dim / 2, layout, step.cosine, step.sine);
    ops::rope(step.ctx, keys, head_dim, 0, head_dim / 2, layout, step.cosine, step.sine);
  }
  const ops::Pages key_pages = step.cache.keys(cache_layer), value_pages = step.cache.values(cache_layer);
  ops::write_pages(keys, step.batch.sequences, key_pages);
  ops::write_pages(values, step.batch.sequences, value_pages);
  const ops::Matrix mixed = step.matrix(heads * head_dim);
  const auto scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(head_dim)));
  ops::attention(step.ctx, step.workspace, queries, key_pages, value_pages, head_dim, step.batch.sequences, scale,
                 mixed);
  o.run(step, mixed, y);
}

}  // namespace sluice::model
