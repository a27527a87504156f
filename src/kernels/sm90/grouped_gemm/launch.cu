// SPDX-License-Identifier: Apache-2.0
// Run-time instance to compiled kernel; each instance is a file of its own (instance.cu.in).
#include "kernels/sm90/grouped_gemm/launch.h"

#include "kernels/sm90/grouped_gemm/config.h"
#include "kernels/sm90/grouped_gemm/kernel.cuh"
#include "kernels/sm90/launch.cuh"

namespace sluice::sm90 {

#define SLUICE_GEMM_INSTANCE(op, m_tiles, max_n, slabs, blocks) \
  extern template __global__ void grouped_gemm<GemmTile<Operand::op, m_tiles, max_n, slabs, blocks>>( \
      const __grid_constant__ GroupedGemmArgs);
#include "kernels/sm90/grouped_gemm/instances.def"
#undef SLUICE_GEMM_INSTANCE

void launch_grouped_gemm(const GroupedGemmArgs& args, const Instance& instance, Stream stream, bool pdl) {
  const auto run = [&]<class T>() {
    launch(grouped_gemm<T>, multiprocessors() * T::blocks_per_sm, T::threads, T::smem_bytes, stream, pdl, args);
  };
#define SLUICE_GEMM_INSTANCE(op, m_tiles, max_n, slabs, blocks)           \
  if (instance == Instance{Operand::op, m_tiles, max_n, slabs, blocks}) \
    return run.operator()<GemmTile<Operand::op, m_tiles, max_n, slabs, blocks>>();
#include "kernels/sm90/grouped_gemm/instances.def"
#undef SLUICE_GEMM_INSTANCE
}

}  // namespace sluice::sm90
