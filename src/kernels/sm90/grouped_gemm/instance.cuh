// SPDX-License-Identifier: Apache-2.0
// One compiled tile: its kernel and the host functions that allow its shared memory and launch it. Each is compiled in
// a generated file of its own (sources.cmake).
#pragma once

#include "kernels/sm90/grouped_gemm/kernel.cuh"
#include "kernels/sm90/launch.cuh"

namespace sluice::sm90 {

template <class T>
void allow_instance() {
  allow_shared_memory(grouped_gemm<T>, T::smem_bytes);
}

template <class T>
void launch_instance(const GroupedGemmArgs& args, int multiprocessors, Stream stream, bool pdl) {
  // Whole clusters; a last odd multiprocessor stays idle.
  const int blocks = multiprocessors * T::blocks_per_sm / T::cluster * T::cluster;
  launch_clusters(grouped_gemm<T>, T::cluster, blocks, T::threads, T::smem_bytes, stream, pdl, args);
}

}  // namespace sluice::sm90
