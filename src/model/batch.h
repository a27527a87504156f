// SPDX-License-Identifier: Apache-2.0
// The only thing that a model receives for a step: rows of tokens, and whose they are. Prompts in chunks, single new
// tokens and drafts to verify mix freely; a row's result does not depend on the rest of the batch.
#pragma once

#include <cstdint>
#include <span>

#include "ops/sequence.h"

namespace sluice::model {

// slot, rows, context, block table, tentative. A sequence with context 0 begins anew: its states are cleared.
using Sequence = ops::Sequence;

struct Batch {
  std::span<const int32_t> tokens;      // [R]
  std::span<const int32_t> positions;   // [R], of the rotary embedding: context + row within the sequence
  std::span<const Sequence> sequences;  // their rows follow one another and cover [0, R)
  std::span<const int32_t> logit_rows;  // rows whose logits are wanted, ascending
  int64_t rows() const { return static_cast<int64_t>(tokens.size()); }
};

}  // namespace sluice::model
