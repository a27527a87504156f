// SPDX-License-Identifier: Apache-2.0
// Ordering of warpgroup matrix products.
#pragma once

#include <cstdint>

namespace sluice::ptx {

__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory"); }
__device__ inline void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory"); }
template <int Pending>
__device__ inline void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(Pending) : "memory");
}
// Ties a register to program order: the compiler may not move its uses across this point.
__device__ inline void pin(float& x) { asm volatile("" : "+f"(x)::"memory"); }
__device__ inline void pin(uint32_t& x) { asm volatile("" : "+r"(x)::"memory"); }

// Matrix descriptor of a K-major tile whose rows are 128 bytes, in the 128-byte swizzle: 16-byte piece c of row r lies
// at piece c ^ (r % 8). 8 rows make an atom of 1024 bytes, aligned to 1024; atoms follow each other along M or N.
// One step of 32 bytes along K adds 2 to the descriptor's low word; the high word is the same for every tile.
__device__ inline uint32_t swizzled_desc_low(uint32_t smem_address) { return smem_address >> 4 | 1u << 16; }
__device__ inline uint64_t swizzled_desc(uint32_t low) { return static_cast<uint64_t>(64u | 1u << 30) << 32 | low; }

}  // namespace sluice::ptx
