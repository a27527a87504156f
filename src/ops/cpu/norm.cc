// SPDX-License-Identifier: Apache-2.0
#include "ops/cpu/norm.h"

#include <algorithm>
#include <cmath>

#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/parallel.h"
#include "ops/cpu/row.h"

namespace sluice::ops::cpu {

void norm_row(const void* x, DType x_type, const float* weight, int64_t n, float eps, void* y, DType y_type) {
  float piece[kPiece];
  SquareSum sum;
  for (int64_t i = 0; i < n; i += kPiece) {
    const int64_t m = std::min(kPiece, n - i);
    load(offset(x, x_type, i), x_type, piece, m);
    sum.add(piece, m);
  }
  const float factor = 1.0f / std::sqrt(sum.total() / static_cast<float>(n) + eps);
  for (int64_t i = 0; i < n; i += kPiece) {
    const int64_t m = std::min(kPiece, n - i);
    if (n > kPiece) load(offset(x, x_type, i), x_type, piece, m);
    scale(piece, factor, piece, m);
    round_to(y_type, piece, m);
    multiply(piece, weight + i, piece, m);
    store(piece, offset(y, y_type, i), y_type, m);
  }
}

namespace {
void gated_group(const float* x, const void* gate, DType dtype, const float* weight, int64_t n, float eps, void* y) {
  // The gated values of one piece; recomputed in the second pass when a group is longer than a piece.
  float piece[kPiece], g[kPiece];
  const auto gated = [&](int64_t i, int64_t m) {
    load(offset(gate, dtype, i), dtype, g, m);
    silu(g, g, m);
    multiply(x + i, g, piece, m);
  };
  SquareSum sum;
  for (int64_t i = 0; i < n; i += kPiece) {
    const int64_t m = std::min(kPiece, n - i);
    gated(i, m);
    sum.add(piece, m);
  }
  const float factor = 1.0f / std::sqrt(sum.total() / static_cast<float>(n) + eps);
  for (int64_t i = 0; i < n; i += kPiece) {
    const int64_t m = std::min(kPiece, n - i);
    if (n > kPiece) gated(i, m);
    scale(piece, factor, piece, m);
    multiply(piece, weight + i, piece, m);
    store(piece, offset(y, dtype, i), dtype, m);
  }
}
}  // namespace

void CpuOps::rms_norm(ConstMatrix x, const RmsNorm& norm, Matrix y) {
  parallel_rows(ctx(), x.rows, x.cols * 2, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r)
      norm_row(x.row(r), x.dtype, norm.weight.as<float>(), x.cols, norm.eps, y.row(r), y.dtype);
  });
}

void CpuOps::add_rms_norm(Matrix x, ConstMatrix change, const RmsNorm& norm, Matrix y) {
  parallel_rows(ctx(), x.rows, x.cols * 3, [&](int64_t begin, int64_t end) {
    float a[kPiece], b[kPiece];
    for (int64_t r = begin; r < end; ++r) {
      for (int64_t i = 0; i < x.cols; i += kPiece) {
        const int64_t n = std::min(kPiece, x.cols - i);
        load(offset(x.row(r), x.dtype, i), x.dtype, a, n);
        load(offset(change.row(r), change.dtype, i), change.dtype, b, n);
        cpu::add(a, b, a, n);
        store(a, offset(x.row(r), x.dtype, i), x.dtype, n);
      }
      norm_row(x.row(r), x.dtype, norm.weight.as<float>(), x.cols, norm.eps, y.row(r), y.dtype);
    }
  });
}

void CpuOps::gated_group_rms_norm(ConstMatrix x, ConstMatrix gate, int64_t groups, const RmsNorm& norm, Matrix y) {
  const float* weight = norm.weight.as<float>();
  const int64_t n = x.cols / groups;
  parallel_rows(ctx(), x.rows, x.cols * 16, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r)
      for (int64_t c = 0; c < x.cols; c += n)
        gated_group(static_cast<const float*>(x.row(r)) + c, offset(gate.row(r), gate.dtype, c), gate.dtype, weight + c,
                    n, norm.eps, offset(y.row(r), y.dtype, c));
  });
}

}  // namespace sluice::ops::cpu
