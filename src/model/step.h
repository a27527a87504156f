// SPDX-License-Identifier: Apache-2.0
// What every layer of one forward pass sees.
#pragma once

#include "base/context.h"
#include "model/batch.h"
#include "model/cache.h"
#include "model/observer.h"
#include "ops/workspace.h"

namespace sluice::model {

struct Step {
  Context& ctx;
  const Batch& batch;
  Cache& cache;
  ops::Workspace& workspace;
  DType dtype = DType::bf16;                       // D
  const float *cosine = nullptr, *sine = nullptr;  // [R, half], of the rotary embedding
  Observer* observer = nullptr;

  int64_t rows() const { return batch.rows(); }
  // D [R, cols], valid until the enclosing Workspace::Scope ends.
  ops::Matrix matrix(int64_t cols) const { return workspace.matrix(dtype, rows(), cols); }
  ops::Matrix floats(int64_t cols) const { return workspace.matrix(DType::f32, rows(), cols); }
};

}  // namespace sluice::model
