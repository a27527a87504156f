// SPDX-License-Identifier: Apache-2.0
// Whether prompts of latent attention are computed in the expanded form, and how many heads at a time: pure functions,
// tested on the host.
#pragma once

#include <cstdint>

#include "kernels/sm90/flashinfer/expanded.h"
#include "kernels/sm90/flashinfer/latent.h"

namespace sluice::sm90 {

// A row of the expanded form: key | value of one position and head.
inline constexpr int kExpandedRow = kExpandedKey + kExpandedValue;

// The prompts of a batch, exactly.
struct PromptBounds {
  int64_t prompts, rows, positions;  // positions: those before the new rows and the new ones
};
struct ExpandedPlan {
  int heads = 0;          // of one pass, a divisor of all heads; 0: the absorbed form is quicker, or takes less memory
  int64_t positions = 0;  // of the expanded rows of a head: each prompt's rounded up to kExpandedTile
};
ExpandedPlan plan_expanded(int heads, const PromptBounds& bounds, int multiprocessors);
int64_t expanded_bytes(const ExpandedPlan& plan);

}  // namespace sluice::sm90
