// SPDX-License-Identifier: Apache-2.0
// The root-mean-square norm of one row or of one head.
#pragma once

#include "tensor/dtype.h"

namespace sluice::ops::cpu {

// y = D(weight * D(x * rsqrt(mean(x^2) + eps))) over n values; x and y bf16 or f32 and may be the same; weight [n].
void norm_row(const void* x, DType x_type, const float* weight, int64_t n, float eps, void* y, DType y_type);

}  // namespace sluice::ops::cpu
