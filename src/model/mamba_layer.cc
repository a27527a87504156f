// SPDX-License-Identifier: Apache-2.0
#include "model/mamba_layer.h"

namespace sluice::model {

void MambaLayer::run(const ForwardContext& forward, const ops::LinearInput& x, ops::Matrix y) const {
  ops::Workspace::Scope scope(forward.ops.workspace());
  const int64_t inner = shape.inner(), channels = shape.channels();
  const ops::Matrix projected = forward.matrix(inner + channels + shape.heads);
  in.run(forward, x, projected);
  const ops::Matrix mixed =
      forward.ops.workspace().matrix(forward.ops.conv_type(forward.dtype), forward.rows(), channels);
  const ops::Matrix scanned = forward.floats(inner), normed = forward.matrix(inner);
  forward.ops.causal_conv(forward.batch, shape, projected.columns(inner, channels), conv, conv_bias,
                          forward.cache.conv_states(cache_layer), mixed);
  forward.ops.state_scan(forward.batch, shape, mixed, projected.columns(inner + channels, shape.heads),
                         {dt_bias, a, skip, forward.row_invariant}, forward.cache.ssm_states(cache_layer), scanned);
  forward.ops.gated_group_rms_norm(scanned, projected.columns(0, inner), shape.groups, norm, normed);
  out.run(forward, normed, y);
}

}  // namespace sluice::model
