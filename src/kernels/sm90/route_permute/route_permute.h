// SPDX-License-Identifier: Apache-2.0
// Routing and permuting for small batches: routing, tables, rounded rows in one launch, or in two where each block
// would have to choose for many tokens. Every block makes the same tables for itself in shared memory, so no block
// waits for another. Block 0 writes them to global memory.
#pragma once

#include "kernels/sm90/quantize/rows.h"
#include "kernels/sm90/route/route.h"

namespace sluice::sm90 {

// Local experts whose counts and rows are in shared memory.
inline constexpr int kMaxPermuteLocals = 1024;
// Whether the tables fit in a block.
bool route_permute_fits(const RouteArgs& route);

// On the current device, once before the launches of a layer: allows their shared memory. early: some are launched so.
void allow_route_permute(int experts, int locals, bool early);

// early: the next kernel may start, and read the given ids, as soon as all kernels before this one are complete.
void launch_route_permute(const RouteArgs& route, const RowsArgs& rows, bool early, const WarmUp& warm_up,
                          Stream stream, bool pdl);

}  // namespace sluice::sm90
