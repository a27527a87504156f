// SPDX-License-Identifier: Apache-2.0
// Causal attention over paged keys and values; the new rows' own keys and values are in the pages already.
#pragma once

#include <span>

#include "base/context.h"
#include "ops/matrix.h"
#include "ops/pages.h"
#include "ops/workspace.h"

namespace sluice::ops {

// q [rows, heads * keys.width]; heads is a multiple of keys.heads, query head h reads key head h / (heads /
// keys.heads). out [rows, heads * value_width]. Row r of a sequence sees the positions [0, context + r]. values.data
// null: the values are the first value_width columns of the keys (multi-head latent attention in its absorbed form).
// float32 throughout, online softmax in tiles of 64 positions; out is rounded once to its type.
void attention(Context& ctx, Workspace& workspace, ConstMatrix q, const Pages& keys, const Pages& values,
               int64_t value_width, std::span<const Sequence> sequences, float scale, Matrix out);

}  // namespace sluice::ops
