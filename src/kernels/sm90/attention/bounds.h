// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace sluice::sm90 {

// Upper bounds of a batch: rows of all sequences, sequences, rows of one sequence, positions of one sequence.
struct AttentionBounds {
  int64_t rows, sequences, longest_rows, longest_context;
};

}  // namespace sluice::sm90
