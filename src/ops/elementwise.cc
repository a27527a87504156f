// SPDX-License-Identifier: Apache-2.0
#include "ops/elementwise.h"

#include <algorithm>

#include "base/error.h"
#include "ops/parallel.h"
#include "ops/row.h"

namespace sluice::ops {

namespace {
// body(x, y, n) on float32 copies of each piece of each row; x is written back.
template <class Body>
void for_pieces(Context& ctx, Matrix x, ConstMatrix y, int64_t work, Body&& body) {
  parallel_rows(ctx, x.rows, x.cols * work, [&](int64_t begin, int64_t end) {
    float a[kPiece], b[kPiece];
    for (int64_t r = begin; r < end; ++r)
      for (int64_t i = 0; i < x.cols; i += kPiece) {
        const int64_t n = std::min(kPiece, x.cols - i);
        load(offset(x.row(r), x.dtype, i), x.dtype, a, n);
        if (y.data != nullptr) load(offset(y.row(r), y.dtype, i), y.dtype, b, n);
        body(a, b, n);
        store(a, offset(x.row(r), x.dtype, i), x.dtype, n);
      }
  });
}
}  // namespace

void add_to(Context& ctx, Matrix x, ConstMatrix y) {
  for_pieces(ctx, x, y, 1, [](float* a, const float* b, int64_t n) { add(a, b, a, n); });
}

void silu_multiply(Context& ctx, Matrix gate, ConstMatrix up) {
  for_pieces(ctx, gate, up, 16, [&](float* a, const float* b, int64_t n) {
    silu(a, a, n);
    round_to(gate.dtype, a, n);
    multiply(a, b, a, n);
  });
}

void relu_squared(Context& ctx, Matrix x) {
  // relu of a value of D is a value of D: one rounding, after the square.
  for_pieces(ctx, x, {}, 1, [](float* a, const float*, int64_t n) { relu2(a, a, n); });
}

void embed(Context& ctx, std::span<const int32_t> ids, ConstMatrix table, Matrix y) {
  for (const int32_t id : ids)
    check(id >= 0 && id < table.rows, "token id {} is outside the vocabulary of {} tokens", id, table.rows);
  parallel_rows(ctx, y.rows, y.cols, [&](int64_t begin, int64_t end) {
    float piece[kPiece];
    for (int64_t r = begin; r < end; ++r)
      for (int64_t i = 0; i < y.cols; i += kPiece) {
        const int64_t n = std::min(kPiece, y.cols - i);
        load(offset(table.row(ids[static_cast<size_t>(r)]), table.dtype, i), table.dtype, piece, n);
        store(piece, offset(y.row(r), y.dtype, i), y.dtype, n);
      }
  });
}

}  // namespace sluice::ops
