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

const void* page_rows(const Pages& pages, const int32_t* blocks, int64_t head, int64_t first, int64_t count,
                      int64_t readable, int64_t stride, void* staging) {
  const DType type = row_type(pages);
  if (type == pages.dtype && stride == pages.width && first % pages.block_size + readable <= pages.block_size)
    return pages.row(blocks[first / pages.block_size], head, first % pages.block_size);
  const auto copy = [&](const void* src, int64_t row, int64_t n) {
    void* dst = offset(staging, type, row * stride);
    if (type == pages.dtype)
      std::memcpy(dst, src, static_cast<size_t>(n * bytes_of(type)));
    else
      widen_codes(static_cast<const uint8_t*>(src), static_cast<bf16_t*>(dst), n);
  };
  for (int64_t i = 0; i < count;) {
    const int64_t in_block = (first + i) % pages.block_size;
    const int64_t n = std::min(count - i, pages.block_size - in_block);
    const void* src = pages.row(blocks[(first + i) / pages.block_size], head, in_block);
    if (stride == pages.width) {
      copy(src, i, n * stride);
    } else {
      for (int64_t j = 0; j < n; ++j) {
        copy(offset(src, pages.dtype, j * pages.width), i + j, pages.width);
        std::memset(offset(staging, type, (i + j) * stride + pages.width), 0,
                    static_cast<size_t>((stride - pages.width) * bytes_of(type)));
      }
    }
    i += n;
  }
  return staging;
}

PageRun page_run(const Pages& pages, const int32_t* blocks, int64_t head, int64_t first, int64_t count) {
  if (count == 0) return {};
  const int64_t in_block = first % pages.block_size, rows = std::min(count, pages.block_size - in_block);
  return {pages.row(blocks[first / pages.block_size], head, in_block), rows * pages.width * bytes_of(pages.dtype)};
}

}  // namespace sluice::ops::cpu
