// SPDX-License-Identifier: Apache-2.0
#include "ops/cpu/pages.h"

#include <algorithm>
#include <cstring>

#include "ops/cpu/row.h"

namespace sluice::ops::cpu {

namespace {
void write_codes(const void* row, DType dtype, int64_t slot, const Pages& pages) {
  float piece[kPiece];
  for (int64_t h = 0; h < pages.heads; ++h)
    for (int64_t c = 0; c < pages.width; c += kPiece) {
      const int64_t n = std::min(kPiece, pages.width - c);
      load(offset(row, dtype, h * pages.width + c), dtype, piece, n);
      for (int64_t i = 0; i < n; ++i) piece[i] /= pages.scale;
      store(piece, offset(pages.row(slot / pages.block_size, h, slot % pages.block_size), pages.dtype, c), pages.dtype,
            n);
    }
}
}  // namespace

void write_page_row(const void* row, DType dtype, int64_t slot, const Pages& pages) {
  if (slot < 0) return;
  if (pages.dtype != dtype) return write_codes(row, dtype, slot, pages);
  const auto bytes = static_cast<size_t>(pages.width * bytes_of(pages.dtype));
  for (int64_t h = 0; h < pages.heads; ++h)
    std::memcpy(pages.row(slot / pages.block_size, h, slot % pages.block_size),
                offset(row, pages.dtype, h * pages.width), bytes);
}

void read_pages(const Pages& pages, const int32_t* blocks, int64_t head, int64_t first, int64_t count, float* out,
                int64_t stride) {
  for (int64_t i = 0; i < count;) {
    const int64_t in_block = (first + i) % pages.block_size;
    const int64_t n = std::min(count - i, pages.block_size - in_block);
    const void* src = pages.row(blocks[(first + i) / pages.block_size], head, in_block);
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

}  // namespace sluice::ops::cpu
