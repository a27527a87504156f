// SPDX-License-Identifier: Apache-2.0
// Blocks of a cluster: a barrier in two halves, and stores into each other's shared memory that count on a barrier
// there.
#pragma once

#include <cstdint>

#include "kernels/ptx/mbarrier.cuh"

namespace sluice::ptx {

// cluster_sync in two halves, each called by all threads of all blocks. Relaxed: after it others may use barriers that
// were published by fence_mbarrier_init, and nothing else.
__device__ inline void cluster_arrive_relaxed() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;\n" ::: "memory");
}
// What this thread has read and written comes before what others do after their wait.
__device__ inline void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;\n" ::: "memory"); }
__device__ inline void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;\n" ::: "memory"); }

// Whether the phase with this parity is complete, without waiting.
__device__ inline bool mbarrier_complete(uint64_t* bar, uint32_t parity) {
  uint32_t complete;
  asm volatile("{\n.reg .pred p;\nmbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}\n"
               : "=r"(complete)
               : "r"(smem_address(bar)), "r"(parity)
               : "memory");
  return complete != 0;
}

// The address of `smem` in the shared memory of block `rank` of the cluster.
__device__ inline uint32_t mapa(uint32_t smem, uint32_t rank) {
  uint32_t remote;
  asm("mapa.shared::cluster.u32 %0, %1, %2;\n" : "=r"(remote) : "r"(smem), "r"(rank));
  return remote;
}
// Stores 4 bytes at such an address. They are seen after the next cluster_sync().
__device__ inline void st_cluster_f32(uint32_t to, float v) {
  asm volatile("st.shared::cluster.f32 [%0], %1;\n" ::"r"(to), "f"(v) : "memory");
}
// Stores 16 (4) bytes there; whoever waits on `bar`, in the same block as `to`, for that many bytes sees them. No fence
// is needed.
__device__ inline void st_async_f32x4(uint32_t to, const float (&v)[4], uint32_t bar) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];\n" ::"r"(to),
      "f"(v[0]), "f"(v[1]), "f"(v[2]), "f"(v[3]), "r"(bar)
      : "memory");
}
__device__ inline void st_async_f32(uint32_t to, float v, uint32_t bar) {
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];\n" ::"r"(to), "f"(v),
               "r"(bar)
               : "memory");
}

}  // namespace sluice::ptx
