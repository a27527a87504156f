// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace sluice::ptx {

// x / s, correctly rounded where the quotient is a normal number and s has a normal reciprocal. The compiler's own
// division calls a subroutine for the other cases, and a call in a kernel makes it serialise the tensor cores.
__device__ inline float divide(float x, float s) {
  float r;
  asm("rcp.approx.f32 %0, %1;\n" : "=f"(r) : "f"(s));
  r = fmaf(r, fmaf(-s, r, 1.0f), r);
  const float q = x * r;
  const float exact = fmaf(fmaf(-s, q, x), r, q);
  return fabsf(q) <= 3.0e38f ? exact : q;  // infinity stays
}

}  // namespace sluice::ptx
