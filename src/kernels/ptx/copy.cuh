// SPDX-License-Identifier: Apache-2.0
// Bulk copies by the copy engine, and its fences.
#pragma once

#include <cstdint>

#include "kernels/ptx/mbarrier.cuh"

namespace sluice::ptx {

// Both addresses and the size are multiples of 16. Completion is counted in bytes on `bar`.
__device__ inline void cp_async_bulk(void* smem, const void* global, uint32_t bytes, uint64_t* bar, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;\n" ::
          "r"(smem_address(smem)),
      "l"(global), "r"(bytes), "r"(smem_address(bar)), "l"(policy)
      : "memory");
}
// The same bytes to the same offsets (data and barrier) of every block of the cluster in `mask`.
__device__ inline void cp_async_bulk_multicast(void* smem, const void* global, uint32_t bytes, uint64_t* bar,
                                               uint16_t mask, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint "
      "[%0], [%1], %2, [%3], %4, %5;\n" ::"r"(smem_address(smem)),
      "l"(global), "r"(bytes), "r"(smem_address(bar)), "h"(mask), "l"(policy)
      : "memory");
}

// Starts a read that nobody waits for.
__device__ inline void prefetch_l1(const void* global) { asm volatile("prefetch.global.L1 [%0];\n" ::"l"(global)); }

__device__ inline uint64_t createpolicy_evict_first() {
  uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;\n" : "=l"(policy));
  return policy;
}
__device__ inline uint64_t createpolicy_evict_last() {
  uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;\n" : "=l"(policy));
  return policy;
}
// Orders ordinary accesses of this thread with the copy engine's, in global and shared memory.
__device__ inline void fence_proxy_async() { asm volatile("fence.proxy.async;\n" ::: "memory"); }

}  // namespace sluice::ptx
