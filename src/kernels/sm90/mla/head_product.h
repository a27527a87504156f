// SPDX-License-Identifier: Apache-2.0
// A product for each head on tensor cores: y[r][h] = x[r][h] W[h], bfloat16 with sums in float32, rounded once. Each
// sum runs over k in ascending order, 16 at a time, whatever the tile: a row's bits do not depend on the other rows.
#pragma once

#include "base/bf16.h"
#include "kernels/sm90/device.h"

namespace sluice::sm90 {

// What resident weights of few columns leave room for.
inline constexpr int kMaxHeadSum = 512;

// y = x W^T per head, in bfloat16 with float32 sums. All pointers are device memory. All strides are in elements and
// multiples of 8, as n, k and the numbers of the copy are; addresses are multiples of 16 bytes.
struct HeadProductArgs {
  const void* x;  // element (row, head, i) at row * x_stride + head * x_head + i
  int64_t x_stride, x_head;
  const int32_t* x_rows;  // [rows] row i of the product is row x_rows[i] of x; null: row i

  const void* weight;  // of head h: the matrix at h * weight_head
  int64_t weight_head;
  bool weight_by_k;  // the matrix is [k, n], rows weight_stride apart; else [n, k]
  int64_t weight_stride;

  void* y;  // element (row, head, i) at row * y_stride + head * y_head + i
  int64_t y_stride, y_head;
  const int32_t* y_rows;  // [rows] row i of the product goes to row y_rows[i] of y; null: to row i

  // Beside the product: x[copy_from ..] becomes y[copy_to ..], `copied` values of each row and head; 0: none.
  int copy_from, copy_to, copied;

  int64_t rows;     // of the product; with pages: room for as many
  int heads, n, k;  // k <= kMaxHeadSum where the weights are [k, n]
};

// Which tile computes, by the number of rows that it is for; tiles differ in speed alone.
enum class HeadTile { to_16, to_32, to_64, to_128, above };
inline constexpr HeadTile kHeadTiles[] = {HeadTile::to_16, HeadTile::to_32, HeadTile::to_64, HeadTile::to_128,
                                          HeadTile::above};
HeadTile choose_head_tile(int64_t rows);

void launch_head_product(const HeadProductArgs& args, HeadTile tile, Stream stream, bool pdl);
// On the current device, once before the first launch there.
void allow_head_product();

}  // namespace sluice::sm90
