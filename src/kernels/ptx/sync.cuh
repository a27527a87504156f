// SPDX-License-Identifier: Apache-2.0
// Thread, grid and cluster ordering.
#pragma once

#include <cstdint>

namespace sluice::ptx {

// Programmatic dependent launch. Both do nothing when the kernel was launched without the attribute.
__device__ inline void griddepcontrol_wait() { asm volatile("griddepcontrol.wait;\n" ::: "memory"); }
__device__ inline void griddepcontrol_launch_dependents() {
  asm volatile("griddepcontrol.launch_dependents;\n" ::: "memory");
}

template <int Registers>
__device__ inline void setmaxnreg_inc() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" ::"n"(Registers));
}
template <int Registers>
__device__ inline void setmaxnreg_dec() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;\n" ::"n"(Registers));
}

// A value that a kernel wrote which has completed, for a thread that reads it before its own griddepcontrol.wait. The
// value is in the L2 cache, but only the wait promises that a weak load sees it: the L1 cache of the multiprocessor may
// still hold what was there before. A load of GPU scope goes past L1.
__device__ inline int ld_relaxed(const int* p) {
  int value;
  asm volatile("ld.relaxed.gpu.global.s32 %0, [%1];\n" : "=r"(value) : "l"(p));
  return value;
}

// A named barrier of a block, for a multiple of 32 threads.
__device__ inline void bar_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;\n" ::"r"(id), "r"(threads) : "memory");
}

__device__ inline int ld_acquire(const int* p) {
  int value;
  asm volatile("ld.acquire.gpu.global.s32 %0, [%1];\n" : "=r"(value) : "l"(p) : "memory");
  return value;
}
__device__ inline int atom_add_acq_rel(int* p, int add) {
  int old;
  asm volatile("atom.acq_rel.gpu.global.add.s32 %0, [%1], %2;\n" : "=r"(old) : "l"(p), "r"(add) : "memory");
  return old;
}
__device__ inline void red_add_release(int* p, int add) {
  asm volatile("red.release.gpu.global.add.s32 [%0], %1;\n" ::"l"(p), "r"(add) : "memory");
}

__device__ inline uint32_t cluster_ctarank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;\n" : "=r"(rank));
  return rank;
}
__device__ inline void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;\n" ::: "memory");
}
// Shared memory of another block of the cluster, at the same offset.
__device__ inline void st_cluster(int* smem, uint32_t rank, int value) {
  asm volatile(
      "{\n.reg .b32 remote;\nmapa.shared::cluster.u32 remote, %0, %1;\nst.shared::cluster.s32 [remote], %2;\n}\n" ::"r"(
          static_cast<uint32_t>(__cvta_generic_to_shared(smem))),
      "r"(rank), "r"(value)
      : "memory");
}

}  // namespace sluice::ptx
