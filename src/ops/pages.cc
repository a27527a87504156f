// SPDX-License-Identifier: Apache-2.0
#include "ops/pages.h"

#include <algorithm>
#include <cstring>

#include "ops/row.h"

namespace sluice::ops {

void write_pages(ConstMatrix x, std::span<const Sequence> sequences, const Pages& pages) {
  const auto bytes = static_cast<size_t>(pages.width * bytes_of(pages.dtype));
  for (const Sequence& s : sequences)
    for (int64_t r = 0; r < s.rows; ++r) {
      const int64_t position = s.context + r;
      const int64_t block = s.blocks[static_cast<size_t>(position / pages.block_size)];
      for (int64_t h = 0; h < pages.heads; ++h)
        std::memcpy(pages.row(block, h, position % pages.block_size),
                    offset(x.row(s.first_row + r), x.dtype, h * pages.width), bytes);
    }
}

void read_pages(const Pages& pages, std::span<const int32_t> block_table, int64_t head, int64_t first, int64_t count,
                float* out, int64_t stride) {
  for (int64_t i = 0; i < count;) {
    const int64_t in_block = (first + i) % pages.block_size;
    const int64_t n = std::min(count - i, pages.block_size - in_block);
    const void* src = pages.row(block_table[static_cast<size_t>((first + i) / pages.block_size)], head, in_block);
    if (stride == pages.width) {
      load(src, pages.dtype, out + i * stride, n * stride);
    } else {
      for (int64_t j = 0; j < n; ++j) {
        float* row = out + (i + j) * stride;
        load(offset(src, pages.dtype, j * pages.width), pages.dtype, row, pages.width);
        std::fill(row + pages.width, row + stride, 0.0f);
      }
    }
    i += n;
  }
}

}  // namespace sluice::ops
