// SPDX-License-Identifier: Apache-2.0
// The shared memory of another block of a cluster.
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

__device__ inline uint32_t ld_cluster(const uint32_t* smem, uint32_t rank) {
  uint32_t value;
  asm volatile(
      "{\n.reg .b32 remote;\nmapa.shared::cluster.u32 remote, %1, %2;\nld.shared::cluster.u32 %0, [remote];\n}\n"
      : "=r"(value)
      : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(smem))), "r"(rank)
      : "memory");
  return value;
}
__device__ inline uint64_t ld_cluster(const uint64_t* smem, uint32_t rank) {
  uint64_t value;
  asm volatile(
      "{\n.reg .b32 remote;\nmapa.shared::cluster.u32 remote, %1, %2;\nld.shared::cluster.u64 %0, [remote];\n}\n"
      : "=l"(value)
      : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(smem))), "r"(rank)
      : "memory");
  return value;
}
__device__ inline void st_cluster(uint64_t* smem, uint32_t rank, uint64_t value) {
  asm volatile(
      "{\n.reg .b32 remote;\nmapa.shared::cluster.u32 remote, %0, %1;\nst.shared::cluster.u64 [remote], %2;\n}\n" ::"r"(
          static_cast<uint32_t>(__cvta_generic_to_shared(smem))),
      "r"(rank), "l"(value)
      : "memory");
}
__device__ inline uint32_t cluster_nctarank() {
  uint32_t blocks;
  asm volatile("mov.u32 %0, %%cluster_nctarank;\n" : "=r"(blocks));
  return blocks;
}

}  // namespace sluice::ptx
