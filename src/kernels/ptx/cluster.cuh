// SPDX-License-Identifier: Apache-2.0
// Reading the shared memory of another block of a cluster.
#pragma once

#include <cstdint>

namespace sluice::ptx {

// What lies at the place of `smem` in the block of this rank.
__device__ inline float ld_cluster(const float* smem, uint32_t rank) {
  float value;
  asm volatile(
      "{\n.reg .b32 remote;\nmapa.shared::cluster.u32 remote, %1, %2;\nld.shared::cluster.f32 %0, [remote];\n}\n"
      : "=f"(value)
      : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(smem))), "r"(rank)
      : "memory");
  return value;
}

}  // namespace sluice::ptx
