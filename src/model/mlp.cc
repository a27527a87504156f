// SPDX-License-Identifier: Apache-2.0
#include "model/mlp.h"

namespace sluice::model {

void Mlp::run(const ForwardContext& forward, const ops::LinearInput& x, ops::Matrix y) const {
  ops::Workspace::Scope scope(forward.ops.workspace());
  const ops::Matrix both = forward.matrix(up.rows());
  const int64_t inter = gated ? up.rows() / 2 : up.rows();
  const ops::Matrix activated = both.columns(0, inter);
  up.run(forward, x, both);
  if (gated)
    forward.ops.silu_multiply(activated, both.columns(inter, inter));
  else
    forward.ops.relu_squared(activated);
  down.run(forward, activated, y);
}

}  // namespace sluice::model
