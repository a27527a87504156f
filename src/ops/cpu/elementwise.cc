// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "format/quantize.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/parallel.h"
#include "ops/cpu/row.h"
#include "routing/random_logits.h"

namespace sluice::ops::cpu {

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

CpuOps::CpuOps(Context& ctx, kernels::cpu::Isa isa)
    : Ops(ctx), scratch_(static_cast<size_t>(ctx.pool.size())), isa_(isa) {}

void CpuOps::add(Matrix x, ConstMatrix y) {
  for_pieces(ctx(), x, y, 1, [](float* a, const float* b, int64_t n) { cpu::add(a, b, a, n); });
}

void CpuOps::silu_multiply(Matrix gate, ConstMatrix up) {
  for_pieces(ctx(), gate, up, 16, [&](float* a, const float* b, int64_t n) {
    silu(a, a, n);
    round_to(gate.dtype, a, n);
    multiply(a, b, a, n);
  });
}

void CpuOps::relu_squared(Matrix x) {
  // relu of a value of D is a value of D: one rounding, after the square.
  for_pieces(ctx(), x, {}, 1, [](float* a, const float*, int64_t n) { relu2(a, a, n); });
}

void CpuOps::embed(const int32_t* ids, const Tensor& table, Matrix y) {
  const ConstMatrix rows{table.data(), table.dtype(), table.dim(0), table.dim(1), table.dim(1)};
  parallel_rows(ctx(), y.rows, y.cols, [&](int64_t begin, int64_t end) {
    float piece[kPiece];
    for (int64_t r = begin; r < end; ++r)
      for (int64_t i = 0; i < y.cols; i += kPiece) {
        const int64_t n = std::min(kPiece, y.cols - i);
        load(offset(rows.row(ids[r]), rows.dtype, i), rows.dtype, piece, n);
        store(piece, offset(y.row(r), y.dtype, i), y.dtype, n);
      }
  });
}

void CpuOps::gather_rows(ConstMatrix x, const int32_t* rows, Matrix y) {
  const auto bytes = static_cast<size_t>(y.cols * bytes_of(y.dtype));
  for (int64_t i = 0; i < y.rows; ++i) std::memcpy(y.row(i), x.row(rows[i]), bytes);
}

void CpuOps::copy(ConstMatrix x, Matrix y) {
  const auto bytes = static_cast<size_t>(y.cols * bytes_of(y.dtype));
  for (int64_t r = 0; r < y.rows; ++r) std::memcpy(y.row(r), x.row(r), bytes);
}

float CpuOps::amax(ConstMatrix x) {
  float piece[kPiece];
  uint32_t largest = 0;
  for (int64_t r = 0; r < x.rows; ++r)
    for (int64_t i = 0; i < x.cols; i += kPiece) {
      const int64_t n = std::min(kPiece, x.cols - i);
      load(offset(x.row(r), x.dtype, i), x.dtype, piece, n);
      for (int64_t j = 0; j < n; ++j) largest = format::amax_bits(largest, piece[j]);
    }
  return std::bit_cast<float>(largest);
}

void CpuOps::random_logits(const int32_t* positions, int64_t rows, Matrix logits) {
  constexpr int64_t kSteps = 16;  // elementary steps of one logit
  parallel_rows(ctx(), logits.rows, kSteps * logits.cols, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      for (int64_t e = 0; e < logits.cols; ++e) {
        const int64_t layer = i / rows, r = i % rows;
        const float logit = logits.dtype == DType::bf16 ? routing::random_logit_bf16(layer, positions[r], r, e)
                                                        : routing::random_logit(layer, positions[r], r, e);
        store(&logit, offset(logits.row(i), logits.dtype, e), logits.dtype, 1);
      }
  });
}

}  // namespace sluice::ops::cpu
