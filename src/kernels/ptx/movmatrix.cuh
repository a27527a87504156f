// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace sluice::ptx {

// Transposes an 8 x 8 matrix of 16-bit values: lane l holds the elements (l / 4, 2 (l % 4)) and the one to its right.
__device__ inline uint32_t movmatrix_trans(uint32_t a) {
  uint32_t d;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;\n" : "=r"(d) : "r"(a));
  return d;
}

}  // namespace sluice::ptx
