// SPDX-License-Identifier: Apache-2.0
// Paged memory of one attention layer: blocks of token rows that sequences own (Batch::blocks).
#pragma once

#include <cstddef>

#include "tensor/dtype.h"

namespace sluice::ops {

// [blocks][heads][block_size][width] of D or e4m3: the rows of one head lie together, as attention reads them.
struct Pages {
  void* data = nullptr;
  DType dtype = DType::f32;
  int64_t blocks = 0, block_size = 0, heads = 0, width = 0;
  // e4m3: a value is code * scale, and x is stored as e4m3(x / scale), to nearest even and saturating. Else 1.
  float scale = 1;

  void* row(int64_t block, int64_t head, int64_t i) const {
    return static_cast<std::byte*>(data) + ((block * heads + head) * block_size + i) * width * bytes_of(dtype);
  }
  int64_t bytes() const { return blocks * heads * block_size * width * bytes_of(dtype); }
};

}  // namespace sluice::ops
