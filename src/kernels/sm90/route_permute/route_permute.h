// SPDX-License-Identifier: Apache-2.0
// Routing and permuting in one launch, for small batches: routing, tables, rounded rows. Every block makes the same
// tables for itself in shared memory (pairs are numbered in their order), so no block waits for another. Block 0 writes
// them to global memory.
#pragma once

#include "kernels/sm90/quantize/rows.h"
#include "kernels/sm90/route/route.h"

namespace sluice::sm90 {

// Whether the tables fit in a block, and routing from logits is cheap enough to repeat in every block.
bool route_permute_fits(const RouteArgs& route);

// Memory that no kernel writes, the input of the instruction-cache warm-up: an InputScale of ones, then zeros.
constexpr int64_t warm_up_bytes(int experts) {
  return static_cast<int64_t>(sizeof(InputScale)) + 4 * (experts > kMaxTopK ? experts : kMaxTopK);
}

// On the current device, once before the launches of a layer: allows their shared memory.
void allow_route_permute(int experts, int locals);

// early: the next kernel may start, and read the given ids, as soon as all kernels before this one are complete.
// warm_up: memory of warm_up_bytes().
void launch_route_permute(const RouteArgs& route, const RowsArgs& rows, bool early, const void* warm_up, Stream stream,
                          bool pdl);

}  // namespace sluice::sm90
