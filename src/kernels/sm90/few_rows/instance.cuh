// SPDX-License-Identifier: Apache-2.0
// The kernels of one operand and their host functions; compiled in a generated file (sources.cmake).
#pragma once

#include <algorithm>

#include "kernels/sm90/few_rows/kernel.cuh"
#include "kernels/sm90/few_rows/launch.h"

namespace sluice::sm90 {

template <WeightOperand op>
void allow_few_rows_of() {
  const auto allow = []<class T>(T) { allow_shared_memory(few_rows<T>, T::smem_bytes); };
  allow(FewTile<op, 8>{});
  allow(FewTile<op, 16>{});
}

template <WeightOperand op>
void launch_few_rows_of(const FewRowsArgs& args, int multiprocessors, Stream stream, bool pdl) {
  const auto run = [&]<class T>(T) {
    // Without parts of K a block takes several tasks in turn, so that the streams never stop.
    const int tasks = args.m_tiles * args.m_parts;
    const int clusters = args.splits > 1 ? tasks : std::min(tasks, multiprocessors * T::blocks_per_sm);
    launch_clusters(few_rows<T>, args.splits, static_cast<unsigned>(clusters * args.splits), T::threads, T::smem_bytes,
                    stream, pdl, args);
  };
  if (few_rows_tile(args.rows) == 8)
    run(FewTile<op, 8>{});
  else
    run(FewTile<op, 16>{});
}

}  // namespace sluice::sm90
