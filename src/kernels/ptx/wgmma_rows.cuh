// SPDX-License-Identifier: Apache-2.0
// Warpgroup matrix products whose B lies in shared memory by rows of K.
#pragma once

#include <cstdint>

#include "kernels/ptx/wgmma_sync.cuh"

namespace sluice::ptx {

// Matrix descriptor of a tile of 64 columns by rows of 128 bytes along K, in the 128-byte swizzle. 8 rows make an atom
// of 1024 bytes, aligned to 1024; atoms follow each other along K, so a step of 16 rows adds 128 to the low word.
__device__ inline uint32_t rows_desc_low(uint32_t smem_address) { return smem_address >> 4 | 64u << 16; }

// D[64, 64] += A[64, 16] B[16, 64]: d as in wgmma.cuh, a in registers, b a rows_desc_low() in swizzled_desc().
__device__ inline void wgmma_m64n64k16_bf16_rows(float* d, const uint32_t (&a)[4], uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, "
      "%13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, {%32, %33, "
      "%34, %35}, %36, 1, 1, 1, 1;\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
        "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]),
        "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]),
        "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

}  // namespace sluice::ptx
