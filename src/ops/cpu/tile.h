// SPDX-License-Identifier: Apache-2.0
// Inner loops over float32 tiles of rows: products with every row and weighted sums of rows, where `stride` (floats per
// row, also the number of values read) is a multiple of 16; and attention's steps between its two products
// (kernels/cpu/micro/tile_product.h). All have one fixed order of summation.
#pragma once

#include <cstdint>

#include "kernels/cpu/micro/row_args.h"

namespace sluice::ops::cpu {

inline constexpr int64_t kTile = 64;  // rows of a tile; softmax advances by tiles at its absolute multiples

// out[i] = factor * sum_c q[c] * rows[i * stride + c], i in [0, count). Rows up to the next multiple of 4 are read and
// as many results written, so tiles have room for them.
void dot_rows(const float* q, const float* rows, int64_t stride, int64_t count, float factor, float* out);

// acc[c] = keep * acc[c] + sum_i p[i] * rows[i * stride + c], c in [0, dims), dims a multiple of 16.
void mix_rows(const float* p, const float* rows, int64_t stride, int64_t count, int64_t dims, float keep, float* acc);

// A kernels::cpu::SoftmaxFn over a tile of scores, which the results overwrite. It has no parts.
static_assert(kTile == kernels::cpu::kSoftmaxPositions);
void softmax_tile(const kernels::cpu::SoftmaxArgs& t);

// A float of 24 bits is the sum of three bfloat16 values: its first 8 bits, the next 8 bits from the first that is set
// on, and the rest. The sum is exact for every finite float of at least 2^-110; of a smaller one, bits below 2^-126 may
// be lost where it is multiplied. An infinite one becomes NaN.
inline constexpr int64_t kParts = 3;

// x[c], c in [0, n) -> kParts rows of words that hold two neighbours each, part_stride words apart; zeros from n up to
// 2 * words.
void split_row(const float* x, int64_t n, int64_t words, uint32_t* out, int64_t part_stride);

// The first `count` of kTile rows of `words` words of two bfloat16 values -> [kTile / 2][2 * words] words of two rows,
// which are those of a word of kernels::cpu::SoftmaxArgs::parts; zeros for the other rows. Of each 32 columns the
// even ones come first.
void pair_rows(const void* rows, int64_t stride, int64_t count, int64_t words, uint32_t* out);
// Makes row i of what pair_rows() made zero.
void clear_paired_row(uint32_t* pairs, int64_t words, int64_t i);

// 16 rows of words [16][stride] -> out [width][kTile]; width a multiple of 16, at most stride. A word is a float or two
// bfloat16 values.
void transpose_rows(const void* rows, int64_t stride, int64_t width, float* out);

// x[c] / sum * scale, c in [0, n), n a multiple of 32. split: x has the even columns of each 32 before the odd ones
// (kernels/cpu/micro/row_args.h), and they come back in order.
void finish_row(float* x, int64_t n, bool split, float sum, float scale);

}  // namespace sluice::ops::cpu
