// SPDX-License-Identifier: Apache-2.0
// Copies of 16 or 4 bytes by single threads, and their completion.
#pragma once

#include <cstdint>

namespace sluice::ptx {

// Past L1. `valid` false: writes zeros and reads nothing.
__device__ inline void cp_async_16(uint32_t smem_address, const void* global, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(smem_address), "l"(global), "r"(valid ? 16 : 0)
               : "memory");
}
__device__ inline void cp_async_4(float* smem, const float* global, bool valid) {
  asm volatile(
      "cp.async.ca.shared.global [%0], [%1], 4, %2;\n" ::"r"(static_cast<uint32_t>(__cvta_generic_to_shared(smem))),
      "l"(global), "r"(valid ? 4 : 0)
      : "memory");
}
__device__ inline void cp_async_commit() { asm volatile("cp.async.commit_group;\n" ::: "memory"); }
// Until all but the last `Pending` groups of this thread are done.
template <int Pending>
__device__ inline void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(Pending) : "memory");
}

// Arrives on a barrier in shared memory, once, when all copies that this thread has begun are done.
__device__ inline void cp_async_arrive(uint64_t* barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];\n" ::"r"(
                   static_cast<uint32_t>(__cvta_generic_to_shared(barrier)))
               : "memory");
}

}  // namespace sluice::ptx
