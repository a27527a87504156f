// SPDX-License-Identifier: Apache-2.0
#include "ops/mla.h"

#include "ops/ops.h"

namespace sluice::ops {

void Ops::mla_attention(const Batch& batch, const MlaShape& shape, const Tensor& kv_b, ConstMatrix q, const Pages& keys,
                        const AttentionOptions& options, Matrix out) {
  const Workspace::Scope scope(workspace());
  const DType type = absorbed_type(shape, q.dtype);
  const Matrix absorbed = workspace().matrix(type, q.rows, shape.heads * shape.cached());
  mla_absorb(shape, kv_b, q, absorbed);
  const Matrix mixed = workspace().matrix(type, q.rows, shape.heads * shape.latent);
  attention(batch, absorbed, keys, {}, shape.latent, options, mixed);
  mla_expand(shape, kv_b, mixed, out);
}

}  // namespace sluice::ops
