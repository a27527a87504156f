// SPDX-License-Identifier: Apache-2.0
#include "model/mamba_layer.h"

namespace sluice::model {

void MambaLayer::run(const Step& step, const ops::LinearInput& x, ops::Matrix y) const {
  ops::Workspace::Scope scope(step.ops.workspace());
  const int64_t inner = shape.inner(), channels = shape.channels();
  const ops::Matrix projected = step.matrix(inner + channels + shape.heads);
  in.run(step, x, projected);
  const ops::Matrix mixed = step.ops.workspace().matrix(step.ops.conv_type(step.dtype), step.rows(), channels);
  const ops::Matrix scanned = step.floats(inner), normed = step.matrix(inner);
  step.ops.causal_conv(step.batch, shape, projected.columns(inner, channels), conv, conv_bias,
                       step.cache.conv_states(cache_layer), mixed);
  step.ops.state_scan(step.batch, shape, mixed, projected.columns(inner + channels, shape.heads),
                      {dt_bias, a, skip, step.row_invariant}, step.cache.ssm_states(cache_layer), scanned);
  step.ops.gated_group_rms_norm(scanned, projected.columns(0, inner), shape.groups, norm, normed);
  out.run(step, normed, y);
}

}  // namespace sluice::model
