// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace sluice::sm90 {

__device__ __forceinline__ float softplus(float x) { return x > 20.0f ? x : log1pf(expf(x)); }

}  // namespace sluice::sm90
