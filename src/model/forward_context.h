// SPDX-License-Identifier: Apache-2.0
// What every layer of one forward pass can use.
#pragma once

#include "model/batch.h"
#include "model/cache.h"
#include "model/observer.h"
#include "ops/ops.h"

namespace sluice::model {

struct ForwardContext {
  ops::Ops& ops;
  const Batch& batch;
  Cache& cache;
  DType dtype = DType::bf16;  // D
  ops::RopeAngles angles;
  Observer* observer = nullptr;
  bool row_invariant = true;  // ModelInfo's
  ops::Matrix random_logits;  // [expert layers * R, E], where benchmarks choose experts at random; else none

  int64_t rows() const { return batch.rows; }
  // D [R, cols], valid until the enclosing Workspace::Scope ends.
  ops::Matrix matrix(int64_t cols) const { return ops.workspace().matrix(dtype, rows(), cols); }
  ops::Matrix floats(int64_t cols) const { return ops.workspace().matrix(DType::f32, rows(), cols); }
};

}  // namespace sluice::model
