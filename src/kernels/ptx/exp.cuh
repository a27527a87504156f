// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace sluice::ptx {

// e^x in two instructions. Rounding x * log2(e) gives a relative error of |x| / 2 ulp beside the 2 ulp of ex2; expf's
// range reduction takes eight instructions. Subnormal results are zero.
__device__ inline float exp_approx(float x) {
  float r;
  asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(r) : "f"(x * 1.4426950408889634f));
  return r;
}
// 1 / x within 1 ulp; zero where the quotient is subnormal.
__device__ inline float reciprocal_approx(float x) {
  float r;
  asm("rcp.approx.ftz.f32 %0, %1;\n" : "=f"(r) : "f"(x));
  return r;
}

}  // namespace sluice::ptx
