// SPDX-License-Identifier: Apache-2.0
// The two inner loops of attention, on float32 tiles of rows: products with every row, and weighted sums of rows.
// `stride` (floats per row, also the number of values read) is a multiple of 16; both have one fixed order of summation.
#pragma once

#include <cstdint>

namespace sluice::ops::cpu {

inline constexpr int64_t kTile = 64;  // rows of a tile; softmax advances by tiles at absolute multiples of 64

// out[i] = factor * sum_c q[c] * rows[i * stride + c], i in [0, count). Rows up to the next multiple of 4 are read and
// as many results written, so tiles have room for them.
void dot_rows(const float* q, const float* rows, int64_t stride, int64_t count, float factor, float* out);

// acc[c] = keep * acc[c] + sum_i p[i] * rows[i * stride + c], c in [0, dims), dims a multiple of 16.
void mix_rows(const float* p, const float* rows, int64_t stride, int64_t count, int64_t dims, float keep, float* acc);

// One step of online softmax over `count` <= 64 scores: they become exp(scale * score - new maximum), and 0 from
// `count` on; `maximum` and `sum` are updated; returns the factor by which everything accumulated before shrinks.
// scores has room for 64.
float softmax_tile(float* scores, int64_t count, float scale, float& maximum, float& sum);

// rows [kTile][stride] -> out [width][kTile]; width a multiple of 16, at most stride.
void transpose_tile(const float* rows, int64_t stride, int64_t width, float* out);

}  // namespace sluice::ops::cpu
