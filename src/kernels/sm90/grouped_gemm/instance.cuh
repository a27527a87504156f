// SPDX-License-Identifier: Apache-2.0
// One compiled tile: its kernel and the host function that launches it, in a file of their own (sources.cmake).
#pragma once

#include "kernels/sm90/grouped_gemm/kernel.cuh"
#include "kernels/sm90/launch.cuh"

namespace sluice::sm90 {

template <class T>
void launch_instance(const GroupedGemmArgs& args, int multiprocessors, Stream stream, bool pdl) {
  launch(grouped_gemm<T>, multiprocessors * T::blocks_per_sm, T::threads, T::smem_bytes, stream, pdl, args);
}

}  // namespace sluice::sm90
