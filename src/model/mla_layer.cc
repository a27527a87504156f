// SPDX-License-Identifier: Apache-2.0
#include "model/mla_layer.h"

namespace sluice::model {

void MlaLayer::run(const Step& step, ops::ConstMatrix x, ops::Matrix y) const {
  ops::Ops& ops = step.ops;
  ops::Workspace::Scope scope(ops.workspace());
  const ops::Matrix low = step.matrix(down.rows()), queries = step.matrix(shape.heads * shape.query());
  down.run(step, x, low);
  if (q_rank > 0) {
    const ops::Matrix low_q = low.columns(0, q_rank);
    ops.rms_norm(low_q, q_norm, low_q);
    q.run(step, low_q, queries);
  } else {
    q.run(step, x, queries);
  }
  const ops::Pages pages = step.cache.keys(cache_layer);
  ops.mla_norm_rope_store(step.batch, shape, layout, step.angles, kv_norm, queries, low.columns(q_rank, shape.cached()),
                          pages);

  // Always the absorbed form, whatever the number of rows: an expanded one for long prompts needs fewer products (192 +
  // 128 against 576 + 512 per key and head in DeepSeek-V3), but two forms round differently, and speculative
  // verification must give the bits of plain decoding.
  const DType type = ops.absorbed_type(shape, step.dtype);
  const ops::Matrix absorbed = ops.workspace().matrix(type, step.rows(), shape.heads * shape.cached());
  ops.mla_absorb(shape, kv_b, queries, absorbed);
  const ops::Matrix mixed = ops.workspace().matrix(type, step.rows(), shape.heads * shape.latent);
  ops.attention(step.batch, absorbed, pages, {}, shape.latent, {scale, step.row_invariant}, mixed);
  const ops::Matrix values = step.matrix(shape.heads * shape.value);
  ops.mla_expand(shape, kv_b, mixed, values);
  o.run(step, values, y);
}

}  // namespace sluice::model
