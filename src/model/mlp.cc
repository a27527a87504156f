// SPDX-License-Identifier: Apache-2.0
#include "model/mlp.h"

namespace sluice::model {

void Mlp::run(const Step& step, const ops::LinearInput& x, ops::Matrix y) const {
  ops::Workspace::Scope scope(step.ops.workspace());
  const ops::Matrix both = step.matrix(up.rows());
  const int64_t inter = gated ? up.rows() / 2 : up.rows();
  const ops::Matrix activated = both.columns(0, inter);
  up.run(step, x, both);
  if (gated)
    step.ops.silu_multiply(activated, both.columns(inter, inter));
  else
    step.ops.relu_squared(activated);
  down.run(step, activated, y);
}

}  // namespace sluice::model
