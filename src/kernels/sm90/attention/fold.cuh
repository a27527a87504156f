// SPDX-License-Identifier: Apache-2.0
// The arithmetic of online softmax that every way of splitting the work shares. Nothing here may be contracted or
// reordered by the compiler, or one split would differ from another in its last bits.
#pragma once

#include "kernels/ptx/divide.cuh"
#include "kernels/ptx/exp2.cuh"

namespace sluice::sm90 {

inline constexpr float kMinusInfinity = -INFINITY;

// Of a maximum that may be -infinity, where nothing has been seen: exponents are taken against 0 then.
__device__ __forceinline__ float exponent_base(float maximum) { return maximum == kMinusInfinity ? 0.0f : maximum; }

// What sums so far and sums of the next part are multiplied by; `maximum` becomes that of both. The identity where the
// next part is empty (-infinity).
struct FoldFactors {
  float keep, take;
};
__device__ __forceinline__ FoldFactors fold_factors(float& maximum, float next) {
  const float both = fmaxf(maximum, next), base = exponent_base(both);
  const FoldFactors f{ptx::ex2_approx(__fsub_rn(maximum, base)), ptx::ex2_approx(__fsub_rn(next, base))};
  maximum = both;
  return f;
}
__device__ __forceinline__ float folded(float sum, float next, FoldFactors f) {
  return fmaf(next, f.take, __fmul_rn(sum, f.keep));
}
// A finished sum over its weights, of which the largest is 1, times the scale of the values.
__device__ __forceinline__ float weighted_mean(float sum, float weights, float scale) {
  return __fmul_rn(ptx::divide(sum, weights), scale);
}

}  // namespace sluice::sm90
