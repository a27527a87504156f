// SPDX-License-Identifier: Apache-2.0
#include "model/mla_layer.h"

#include "ops/attention.h"

namespace sluice::model {

void MlaLayer::run(const Step& step, ops::ConstMatrix x, ops::Matrix y) const {
  ops::Workspace::Scope scope(step.workspace);
  const ops::Matrix queries = step.matrix(shape.heads * shape.query());
  if (q_a) {
    const ops::Matrix low = step.matrix(q_a->rows());
    q_a->run(step, x, low);
    q_norm.run(step, low, low);
    q_b.run(step, low, queries);
  } else {
    q_b.run(step, x, queries);
  }
  const ops::Matrix latent = step.matrix(shape.cached());
  kv_a.run(step, x, latent);
  kv_norm.run(step, latent.columns(0, shape.latent), latent.columns(0, shape.latent));
  const int64_t half = shape.rope / 2;
  ops::rope(step.ctx, queries, shape.query(), shape.nope, half, layout, step.cosine, step.sine);
  ops::rope(step.ctx, latent, shape.cached(), shape.latent, half, layout, step.cosine, step.sine);

  const ops::Pages pages = step.cache.keys(cache_layer);
  ops::write_pages(latent, step.batch.sequences, pages);
  const ops::Matrix absorbed = step.floats(shape.heads * shape.cached());
  ops::mla_absorb(step.ctx, step.workspace, shape, kv_b, queries, absorbed);
  const ops::Matrix mixed = step.floats(shape.heads * shape.latent);
  ops::attention(step.ctx, step.workspace, absorbed, pages, {}, shape.latent, step.batch.sequences, scale, mixed);
  const ops::Matrix values = step.matrix(shape.heads * shape.value);
  ops::mla_expand(step.ctx, step.workspace, shape, kv_b, mixed, values);
  o.run(step, values, y);
}

}  // namespace sluice::model
