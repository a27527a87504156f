// SPDX-License-Identifier: Apache-2.0
#include "kernels/sm90/grouped_gemm/launch.h"

#include "kernels/sm90/grouped_gemm/config.h"

namespace sluice::sm90 {

// Compiled by the generated files.
template <class T>
void launch_instance(const GroupedGemmArgs& args, int multiprocessors, Stream stream, bool pdl);

void launch_grouped_gemm(const GroupedGemmArgs& args, const Instance& instance, Stream stream, bool pdl) {
#define SLUICE_GEMM_INSTANCE(op, m_tiles, max_n, slabs, blocks, cluster)                                           \
  if (instance == Instance{Operand::op, m_tiles, max_n, slabs, blocks, cluster})                                   \
    return launch_instance<GemmTile<Operand::op, m_tiles, max_n, slabs, blocks, cluster>>(args, multiprocessors(), \
                                                                                          stream, pdl);
#include "kernels/sm90/grouped_gemm/instances.def"
#undef SLUICE_GEMM_INSTANCE
}

}  // namespace sluice::sm90
