// SPDX-License-Identifier: Apache-2.0
#include "model/mamba_layer.h"

#include "ops/norm.h"

namespace sluice::model {

void MambaLayer::run(const Step& step, ops::ConstMatrix x, ops::Matrix y) const {
  ops::Workspace::Scope scope(step.workspace);
  const int64_t inner = shape.inner(), channels = shape.channels();
  const ops::Matrix projected = step.matrix(inner + channels + shape.heads);
  in.run(step, x, projected);
  const ops::Matrix mixed = step.floats(channels), states = step.floats(inner);
  ops::causal_conv(step.ctx, shape, projected.columns(inner, channels), conv.as<float>(),
                   conv_bias.empty() ? nullptr : conv_bias.as<float>(), step.batch.sequences,
                   step.cache.conv_states(cache_layer), mixed);
  ops::state_scan(step.ctx, shape, mixed, projected.columns(inner + channels, shape.heads), dt_bias.as<float>(),
                  a.as<float>(), skip.as<float>(), step.batch.sequences, step.cache.ssm_states(cache_layer), states);
  const ops::Matrix normed = step.matrix(inner);
  ops::gated_group_rms_norm(step.ctx, states, projected.columns(0, inner), shape.groups, norm.as<float>(), eps, normed);
  out.run(step, normed, y);
}

}  // namespace sluice::model
