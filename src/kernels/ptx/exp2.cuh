// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace sluice::ptx {

// 2^x within 2 ulp; exactly 1 for 0, 0 for -infinity. Subnormal results are zero.
__device__ inline float ex2_approx(float x) {
  float r;
  asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(r) : "f"(x));
  return r;
}

// The smaller of x and `most`; NaN stays.
__device__ inline float at_most(float x, float most) {
  float r;
  asm("min.NaN.f32 %0, %1, %2;\n" : "=f"(r) : "f"(x), "f"(most));
  return r;
}

}  // namespace sluice::ptx
