// SPDX-License-Identifier: Apache-2.0
// The kernels of one operand and their host functions; compiled in a generated file (sources.cmake).
#pragma once

#include "kernels/sm90/one_token/first.cuh"
#include "kernels/sm90/one_token/second.cuh"

namespace sluice::sm90 {

template <WeightOperand op>
void allow_one_token_of() {
  allow_shared_memory(one_token_first<op>, kOneTokenFirstMemory);
  allow_shared_memory(one_token_second<op>, kOneTokenSecondMemory);
  // So that the second one streams its weights while the first runs, whatever ran before. Not for BF16: alone the layer
  // gains nothing, and one sequence of a whole model was 1 % slower (docs/kernels/sm90_one_token.md).
  if constexpr (op != WeightOperand::bf16) {
    prefer_shared_memory(one_token_first<op>);
    prefer_shared_memory(one_token_second<op>);
  }
}

template <WeightOperand op>
void launch_one_token_of(const OneTokenArgs& args, int multiprocessors, Stream stream, bool pdl) {
  const OneTokenShape shape{{args.gemm[0].k_blocks, args.gemm[1].k_blocks},
                            {args.gemm[0].epilogue.columns, args.gemm[1].epilogue.columns},
                            args.gemm[0].epilogue.gated,
                            args.top_k};
  const OneTokenPlan p = plan_one_token<op>(shape, multiprocessors);
  launch(one_token_first<op>, static_cast<unsigned>(multiprocessors), FirstTile<op>::threads, p.first_bytes, stream,
         pdl, args, p.first_parts);
  const int groups = groups_of(shape.columns[1], false);
  launch_clusters(one_token_second<op>, p.cluster, static_cast<unsigned>(groups * p.cluster), SecondTile<op>::threads,
                  p.second_bytes, stream, pdl, args, p);
}

}  // namespace sluice::sm90
