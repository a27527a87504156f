// SPDX-License-Identifier: Apache-2.0
#include "model/mla_layer.h"

namespace sluice::model {

void MlaLayer::run(const ForwardContext& forward, const ops::LinearInput& x, ops::Matrix y) const {
  ops::Ops& ops = forward.ops;
  ops::Workspace::Scope scope(ops.workspace());
  const ops::Matrix low = forward.matrix(down.rows()), queries = forward.matrix(shape.heads * shape.query());
  down.run(forward, x, low);
  if (q_rank > 0) {
    const ops::Matrix low_q = low.columns(0, q_rank);
    ops.rms_norm(low_q, q_norm, low_q);
    q.run(forward, low_q, queries);
  } else {
    q.run(forward, x, queries);
  }
  const ops::Pages pages = forward.cache.keys(cache_layer);
  ops.mla_norm_rope_store(forward.batch, shape, layout, forward.angles, kv_norm, queries,
                          low.columns(q_rank, shape.cached()), pages);

  // Where one form must serve drafts and plain decoding alike, row_invariant says so.
  const ops::Matrix values = forward.matrix(shape.heads * shape.value);
  ops.mla_attention(forward.batch, shape, kv_b, queries, pages, {scale, forward.row_invariant}, values);
  o.run(forward, values, y);
}

}  // namespace sluice::model
