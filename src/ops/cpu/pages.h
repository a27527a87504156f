// SPDX-License-Identifier: Apache-2.0
// Rows in and out of pages on the CPU.
#pragma once

#include <span>

#include "ops/pages.h"

namespace sluice::ops::cpu {

// Stores a row of all heads, `dtype` [heads * width], at `slot` = block * block_size + offset; -1: nowhere. The pages
// are of `dtype` or e4m3.
void write_page_row(const void* row, DType dtype, int64_t slot, const Pages& pages);

// The type in which page_rows() gives rows: float32, or bfloat16 for both types of 16 and 8 bits.
inline DType row_type(const Pages& pages) { return pages.dtype == DType::f32 ? DType::f32 : DType::bf16; }

// The rows of a head's positions [first, first + count), without the scale of the pages: `stride` elements of
// row_type() apart, zeros from the width on. Where they lie so in one block, with `readable` rows in all, this is where
// they are; else they are copied to `staging`. `blocks`: of the sequence, in order of position.
const void* page_rows(const Pages& pages, const int32_t* blocks, int64_t head, int64_t first, int64_t count,
                      int64_t readable, int64_t stride, void* staging);

// The first of these rows that lie in one piece, for a prefetch; none if count is 0.
struct PageRun {
  const void* data = nullptr;
  int64_t bytes = 0;
};
PageRun page_run(const Pages& pages, const int32_t* blocks, int64_t head, int64_t first, int64_t count);

}  // namespace sluice::ops::cpu
