// SPDX-License-Identifier: Apache-2.0
// Rows in and out of pages on the CPU.
#pragma once

#include <span>

#include "ops/pages.h"

namespace sluice::ops::cpu {

// Stores a row of all heads, `dtype` [heads * width], at `slot` = block * block_size + offset; -1: nowhere. The pages
// are of `dtype` or e4m3.
void write_page_row(const void* row, DType dtype, int64_t slot, const Pages& pages);

// Reads `count` token rows of a head from position `first` on as float32, `stride` floats apart, without the scale of
// the pages; the columns from `width` up to `stride` are set to zero. `blocks`: of the sequence, in order of position.
void read_pages(const Pages& pages, const int32_t* blocks, int64_t head, int64_t first, int64_t count, float* out,
                int64_t stride);

}  // namespace sluice::ops::cpu
