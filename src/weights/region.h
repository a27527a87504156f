// SPDX-License-Identifier: Apache-2.0
// Rectangles of a QuantTensor with the scales that belong to them: what sharding, padding and loading share.
#pragma once

#include "weights/quant_tensor.h"

namespace sluice::weights {

struct Range {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
  bool operator==(const Range&) const = default;
};

// Copies `count` rows row_begin, row_begin + row_step, ... and the columns of src's matrix src_expert to the top left
// corner of dst's matrix dst_expert, with their scales. Same format; dst's other rows, columns and scales stay as they
// are. cols.begin (and the rows, where a scale covers more than one) must lie on the format's scale groups; the ends
// must too, unless they are src's ends. Throws invalid_argument otherwise.
void copy_region(const QuantTensor& src, int64_t src_expert, int64_t row_begin, int64_t row_step, int64_t count,
                 Range cols, QuantTensor& dst, int64_t dst_expert);

// The scales alone.
void copy_scales(const QuantTensor& src, int64_t src_expert, int64_t row_begin, int64_t row_step, int64_t count,
                 Range cols, QuantTensor& dst, int64_t dst_expert);

// A new tensor of experts x rows x cols.
QuantTensor cut(const QuantTensor& w, Range experts, Range rows, Range cols);

// Every code zero and every scale neutral: 0 for NVFP4's e4m3, 127 (1.0) for UE8M0, 1 for float.
void fill_neutral(QuantTensor& w);

}  // namespace sluice::weights
