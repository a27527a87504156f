// SPDX-License-Identifier: Apache-2.0
#include "ops/ops.h"

namespace sluice::ops {

void Ops::norm_rope_attention(const Batch& batch, const QkvLayout& layout, const RopeAngles& angles, Matrix qkv,
                              const Pages& keys, const Pages& values, const AttentionOptions& options, Matrix out) {
  norm_rope_store(batch, layout, angles, qkv, keys, values);
  attention(batch, qkv.columns(0, layout.heads * layout.head_dim), keys, values, layout.head_dim, options, out);
}

}  // namespace sluice::ops
