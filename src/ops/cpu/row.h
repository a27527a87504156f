// SPDX-License-Identifier: Apache-2.0
// Pieces of rows between the run's type and float32, and the elementary loops over them. Every sum has one fixed order
// that depends on the length alone: a row's result is the same bits whatever else is in the batch.
#pragma once

#include "base/bf16.h"
#include "tensor/dtype.h"

namespace sluice::ops::cpu {

// Rows are worked on in pieces of this many elements, in a buffer on the stack.
inline constexpr int64_t kPiece = 1024;

// n elements of `dtype` (f32, bf16 or e4m3) -> float32, and back (rounded to nearest, ties to even).
void load(const void* src, DType dtype, float* dst, int64_t n);
void store(const float* src, void* dst, DType dtype, int64_t n);
// e4m3 -> bfloat16, which holds every code's value.
void widen_codes(const uint8_t* src, bf16_t* dst, int64_t n);
// Rounds in place to `dtype` and back: a rounding point without memory traffic. Nothing for f32.
void round_to(DType dtype, float* x, int64_t n);

// The i-th element of a row on; for pieces.
const void* offset(const void* row, DType dtype, int64_t i);
void* offset(void* row, DType dtype, int64_t i);

// Sixteen partial sums of squares: lane j takes the elements j, j + 16, ...; add() many pieces (all but the last a
// multiple of 16), then total().
struct SquareSum {
  float lanes[16] = {};
  void add(const float* x, int64_t n);
  float total() const;
};

void multiply(const float* a, const float* b, float* out, int64_t n);
void add(const float* a, const float* b, float* out, int64_t n);
void scale(const float* a, float factor, float* out, int64_t n);
void silu(const float* x, float* out, int64_t n);   // x / (1 + exp(-x))
void relu2(const float* x, float* out, int64_t n);  // max(x, 0)^2

}  // namespace sluice::ops::cpu
