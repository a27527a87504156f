// SPDX-License-Identifier: Apache-2.0
#include "ops/ops.h"

namespace sluice::ops {

void Ops::add_rms_norm_multiply(Matrix x, const Change& change, const RmsNorm& norm, Matrix y,
                                const RoundedRows& rounded, const NormProduct& product) {
  add_rms_norm(x, change, norm, y, rounded);
  const Workspace::Scope scope(workspace());
  const int64_t bytes = product.linear->workspace_bytes(y.rows);
  product.linear->run(ctx(), {y, rounded}, product.z, workspace().take_bytes(bytes), bytes);
}

}  // namespace sluice::ops
