// SPDX-License-Identifier: Apache-2.0
// The part of a layer's experts that one rank holds. Tensor parallelism cuts the intermediate dimension I, expert
// parallelism the list of experts; the sum of all ranks' outputs is the layer's output.
#pragma once

#include "weights/expert_weights.h"
#include "weights/region.h"

namespace sluice::weights {

struct Shard {
  int tp_rank = 0, tp_size = 1;
  int ep_rank = 0, ep_size = 1;
};

// Throws invalid_argument unless 0 <= rank < size.
void validate(const Shard& shard);

// Columns of I that a cut may not split: the larger of the scale groups of the weights (128 for fp8_block) and of the
// input rows of the second GEMM (32 for mxfp8); bf16 and float scales of whole rows cut anywhere.
int64_t cut_of(format::Format weights, format::InputFormat inputs);

// Rank's part of [0, size): whole units of `cut` (the last one may be short), spread evenly. 1856 by 8 with cut 16 is
// 14 or 15 units per rank; 768 by 8 with cut 128 leaves two ranks with nothing, never rank 0, which holds bias_down.
// Cutting at size / tp instead would split a scale: 1856 / 8 = 232 = 14.5 * 16 (docs/numerics.md, Shards).
Range part_of(int64_t size, int64_t cut, int rank, int ranks);

// The rows of `up` and `gate`, the columns of `down`, the local experts and their share of the biases. bias_down is
// zero but for tp_rank 0, so that it is counted once. Input scales stay those of all experts: every rank quantises
// alike.
ExpertWeights shard(const ExpertWeights& w, const Shard& shard,
                    format::InputFormat inputs = format::InputFormat::plain);

}  // namespace sluice::weights
