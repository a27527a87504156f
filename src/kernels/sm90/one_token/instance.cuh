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
}

template <WeightOperand op>
void launch_one_token_of(const OneTokenArgs& args, int multiprocessors, Stream stream, bool pdl, bool follows_own) {
  const OneTokenShape shape{{args.gemm[0].k_blocks, args.gemm[1].k_blocks},
                            {args.gemm[0].epilogue.columns, args.gemm[1].epilogue.columns},
                            args.gemm[0].epilogue.gated,
                            args.top_k};
  const OneTokenPlan p = plan_one_token<op>(shape, multiprocessors);
  // The largest shared memory, so that the second kernel streams its weights while the first runs, whatever ran before.
  // Not for BF16 after this library's kernels: the layer gains nothing there, and one sequence of a whole model was 1 %
  // slower (docs/kernels/sm90_one_token.md).
  const LaunchOptions options{pdl, op != WeightOperand::bf16 || !follows_own};
  launch(one_token_first<op>, static_cast<unsigned>(multiprocessors), FirstTile<op>::threads, p.first_bytes, stream,
         options, args, p.first_parts);
  const int groups = groups_of(shape.columns[1], false);
  launch_clusters(one_token_second<op>, p.cluster, static_cast<unsigned>(groups * p.cluster), SecondTile<op>::threads,
                  p.second_bytes, stream, options, args, p);
}

}  // namespace sluice::sm90
