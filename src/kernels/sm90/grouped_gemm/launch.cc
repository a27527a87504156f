// SPDX-License-Identifier: Apache-2.0
#include "kernels/sm90/grouped_gemm/launch.h"

#include "base/error.h"
#include "kernels/sm90/grouped_gemm/config.h"

namespace sluice::sm90 {

// Compiled by the generated files.
template <class T>
void allow_instance();
template <class T>
void launch_instance(const GroupedGemmArgs& args, int multiprocessors, Stream stream, bool pdl);

void allow_grouped_gemm(WeightOperand operand) {
#define SLUICE_GEMM_INSTANCE(op, m_tiles, max_n, k_blocks, blocks, cluster) \
  if (operand == WeightOperand::op)                                         \
    allow_instance<GemmTile<WeightOperand::op, m_tiles, max_n, k_blocks, blocks, cluster>>();
#include "kernels/sm90/grouped_gemm/instances.def"
#undef SLUICE_GEMM_INSTANCE
}

void launch_grouped_gemm(const GroupedGemmArgs& args, const Instance& instance, int multiprocessors, Stream stream,
                         bool pdl) {
#define SLUICE_GEMM_INSTANCE(op, m_tiles, max_n, k_blocks, blocks, cluster)                         \
  if (instance == Instance{WeightOperand::op, m_tiles, max_n, k_blocks, blocks, cluster})           \
    return launch_instance<GemmTile<WeightOperand::op, m_tiles, max_n, k_blocks, blocks, cluster>>( \
        args, multiprocessors, stream, pdl);
#include "kernels/sm90/grouped_gemm/instances.def"
#undef SLUICE_GEMM_INSTANCE
  fail(ErrorCode::internal, "no grouped GEMM is compiled for the tile {}", instance.name());
}

}  // namespace sluice::sm90
