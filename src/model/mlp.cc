// SPDX-License-Identifier: Apache-2.0
#include "model/mlp.h"

#include "ops/elementwise.h"

namespace sluice::model {

void Mlp::run(const Step& step, ops::ConstMatrix x, ops::Matrix y) const {
  ops::Workspace::Scope scope(step.workspace);
  const ops::Matrix wide = step.matrix(up.rows());
  if (gate) {
    const ops::Matrix other = step.matrix(up.rows());
    gate->run(step, x, wide);
    up.run(step, x, other);
    ops::silu_multiply(step.ctx, wide, other);
  } else {
    up.run(step, x, wide);
    ops::relu_squared(step.ctx, wide);
  }
  down.run(step, wide, y);
}

int64_t Mlp::weight_bytes() const {
  return (gate ? gate->weight_bytes() : 0) + up.weight_bytes() + down.weight_bytes();
}

}  // namespace sluice::model
