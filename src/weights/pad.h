// SPDX-License-Identifier: Apache-2.0
// Sizes rounded up for kernels that want multiples. Gate and up are separate stacks, so each half is padded on its own
// and no half boundary moves (docs/numerics.md, Padding).
#pragma once

#include "weights/expert_weights.h"

namespace sluice::weights {

// rows x cols, at least w's own; what is added reads as zero (fill_neutral in region.h).
QuantTensor pad(const QuantTensor& w, int64_t rows, int64_t cols);

// Columns that a matrix is padded to multiples of: kernels take whole groups of 16 and 32, blocks of 128 may end short.
constexpr int64_t small_group(format::Format format) {
  const format::FormatInfo f = info(format);
  return f.scale == format::ScaleType::e8m0 || f.scale == format::ScaleType::e4m3 ? f.group_k : 1;
}

// I and H rounded up to multiples. Biases are padded with zeros. Every activation of (0, 0) is 0, and the added columns
// of `down` are 0 as well, so outputs do not change by a bit; rows of hidden states must be padded with zeros to match.
ExpertWeights pad(const ExpertWeights& w, int64_t inter_multiple, int64_t hidden_multiple = 1);

}  // namespace sluice::weights
