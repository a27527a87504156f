// SPDX-License-Identifier: Apache-2.0
// Describes rows in memory to the copy engine, which then copies boxes of 128 bytes of several rows into shared memory
// as the tensor cores read them: the eight 16-byte pieces of a row's 128 bytes swizzled as in the rows layout
// (layout.h).
#pragma once

#include <cstdint>

namespace sluice::sm90 {

// What the copy engine reads rows by (a CUtensorMap), in the parameters of a kernel.
struct alignas(64) TensorMap {
  uint64_t words[16];
};

// Rows of `bytes` bytes, `stride` bytes apart; `data` and `stride` are multiples of 16. A box is 128 bytes of
// `box_rows` rows, at most 256. What lies beyond the rows or their bytes is copied as zeros.
TensorMap rows_map(const void* data, int64_t rows, int64_t bytes, int64_t stride, int box_rows);

}  // namespace sluice::sm90
