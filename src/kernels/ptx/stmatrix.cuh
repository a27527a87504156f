// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "kernels/ptx/mbarrier.cuh"

namespace sluice::ptx {

// Four 8x8 matrices of 16-bit values, transposed: lane i gives the address of row i % 8 of matrix i / 8. Word m of a
// lane holds elements (lane / 4, 2 * (lane % 4) + {0, 1}) of matrix m, which land in memory rows 2 * (lane % 4) + {0,
// 1}.
__device__ inline void stmatrix_x4_trans(void* smem, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};\n" ::"r"(smem_address(smem)),
               "r"(a), "r"(b), "r"(c), "r"(d)
               : "memory");
}

}  // namespace sluice::ptx
