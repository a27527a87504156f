// SPDX-License-Identifier: Apache-2.0
// Random weights for a model whose shapes are wanted and whose checkpoint is not there (--load-format dummy).
#pragma once

#include <string_view>

#include "base/thread_pool.h"
#include "tensor/tensor.h"

namespace sluice::weights {

// Largest |x| assumed of inputs that a dummy model scales statically: normed activations stay well below it.
inline constexpr float kDummyAmax = 16.0f;

// bf16 or f32 values that depend on name and index alone, so every run and number of threads gives the same model. The
// name decides the distribution; all are uniform:
//   *norm*.weight           0.9 to 1.1
//   A_log, D, dt_bias       Mamba-2's initial ranges: log of 1 to 16, 1, inverse softplus of 0.001 to 0.1
//   *bias                   -0.02 to 0.02
//   everything else         of variance 1 / (last dimension): a matrix product keeps the variance of its input
Tensor dummy_tensor(ThreadPool& pool, std::string_view name, DType dtype, const Shape& shape);

}  // namespace sluice::weights
