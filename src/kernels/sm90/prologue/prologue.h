// SPDX-License-Identifier: Apache-2.0
// Everything before the grouped GEMM in one launch, for few tokens: routing, tables, rounded rows. Every block makes
// the tables for itself in shared memory (they are the same in all, because pairs are numbered in their order), so no
// block waits for another; block 0 writes them down.
#pragma once

#include "kernels/sm90/quantize/rows.h"
#include "kernels/sm90/route/route.h"

namespace sluice::sm90 {

// Whether the tables fit in a block, and routing from logits is cheap enough to repeat in every block.
bool prologue_fits(const RouteArgs& route);

// Memory that nobody writes, for rehearsals: an InputScale of ones, then zeros.
constexpr int64_t rehearsal_bytes(int experts) {
  return static_cast<int64_t>(sizeof(InputScale)) + 4 * (experts > kMaxTopK ? experts : kMaxTopK);
}

// early: the next kernel may start, and read the given ids, as soon as all before this one is complete.
void launch_prologue(const RouteArgs& route, const RowsArgs& rows, bool early, const void* rehearsal, Stream stream,
                     bool pdl);

}  // namespace sluice::sm90
