// SPDX-License-Identifier: Apache-2.0
#include "model/mla_layer.h"

namespace sluice::model {

void MlaLayer::run(const Step& step, const ops::LinearInput& x, ops::Matrix y) const {
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

  // Where one form must serve drafts and plain decoding alike, row_invariant says so.
  const ops::Matrix values = step.matrix(shape.heads * shape.value);
  ops.mla_attention(step.batch, shape, kv_b, queries, pages, {scale, step.row_invariant}, values);
  o.run(step, values, y);
}

}  // namespace sluice::model
