// SPDX-License-Identifier: Apache-2.0
// Paged memory of one attention layer: blocks of token rows that sequences own through their block tables.
#pragma once

#include <span>

#include "base/context.h"
#include "ops/matrix.h"
#include "ops/sequence.h"

namespace sluice::ops {

// [blocks][heads][block_size][width] of D: the rows of one head lie together, as attention reads them.
struct Pages {
  void* data = nullptr;
  DType dtype = DType::f32;
  int64_t blocks = 0, block_size = 0, heads = 0, width = 0;

  void* row(int64_t block, int64_t head, int64_t i) const {
    return static_cast<std::byte*>(data) + ((block * heads + head) * block_size + i) * width * bytes_of(dtype);
  }
  int64_t bytes() const { return blocks * heads * block_size * width * bytes_of(dtype); }
};

// Stores x [rows of the batch, heads * width], of D, at the new positions of its sequences.
void write_pages(ConstMatrix x, std::span<const Sequence> sequences, const Pages& pages);

// Reads `count` token rows of a head from position `first` on as float32, `stride` floats apart; the columns from
// `width` up to `stride` are set to zero.
void read_pages(const Pages& pages, std::span<const int32_t> block_table, int64_t head, int64_t first, int64_t count,
                float* out, int64_t stride);

}  // namespace sluice::ops
