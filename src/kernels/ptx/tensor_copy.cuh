// SPDX-License-Identifier: Apache-2.0
// Copies of a box of a matrix by the copy engine, as a tensor map in the kernel's parameters describes it.
#pragma once

#include <cstdint>

#include "kernels/ptx/mbarrier.cuh"

namespace sluice::ptx {

// Fetches the map itself.
__device__ inline void prefetch_tensor_map(const void* map) {
  asm volatile("prefetch.tensormap [%0];\n" ::"l"(map) : "memory");
}

// The box from element `column` of row `row` on. Elements beyond the matrix are zeros, and count as bytes on `bar`.
__device__ inline void cp_async_bulk_tensor(void* smem, const void* map, int column, int row, uint64_t* bar) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], "
      "[%4];\n" ::"r"(smem_address(smem)),
      "l"(map), "r"(column), "r"(row), "r"(smem_address(bar))
      : "memory");
}
// The same with an L2 policy.
__device__ inline void cp_async_bulk_tensor(void* smem, const void* map, int column, int row, uint64_t* bar,
                                            uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%2, %3}], [%4], %5;\n" ::"r"(smem_address(smem)),
      "l"(map), "r"(column), "r"(row), "r"(smem_address(bar)), "l"(policy)
      : "memory");
}
// The same bytes to the same offsets (data and barrier) of every block of the cluster in `mask`.
__device__ inline void cp_async_bulk_tensor_multicast(void* smem, const void* map, int column, int row, uint64_t* bar,
                                                      uint16_t mask, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster"
      ".L2::cache_hint [%0], [%1, {%2, %3}], [%4], %5, %6;\n" ::"r"(smem_address(smem)),
      "l"(map), "r"(column), "r"(row), "r"(smem_address(bar)), "h"(mask), "l"(policy)
      : "memory");
}
// From this block's shared memory to that of another block of the cluster; `to` and `bar` are mapa addresses there.
__device__ inline void cp_async_bulk_cluster(uint32_t to, const void* from, uint32_t bytes, uint32_t bar) {
  asm volatile(
      "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];\n" ::"r"(to),
      "r"(smem_address(from)), "r"(bytes), "r"(bar)
      : "memory");
}

// fence_proxy_async for this block's shared memory alone.
__device__ inline void fence_proxy_async_shared() { asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory"); }

// For cp_async_bulk: as without a policy.
__device__ inline uint64_t createpolicy_evict_normal() {
  uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;\n" : "=l"(policy));
  return policy;
}

}  // namespace sluice::ptx
