// SPDX-License-Identifier: Apache-2.0
#include "ops/cpu/norm.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "format/quantize.h"
#include "kernels/cpu/cpu_kernel.h"
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

namespace {
// The codes and scales of row r of y. A piece is whole groups.
void round_row(ConstMatrix y, int64_t r, const RoundedRows& to) {
  static_assert(kPiece % 128 == 0);
  using format::InputFormat;
  const InputFormat f = to.rounding.format;
  uint8_t* codes = to.codes + r * y.cols;
  auto* scales = static_cast<std::byte*>(to.scales) + r * group_scale_bytes(to.rounding, y.cols);
  const auto pieces = [&](auto&& use) {
    float v[kPiece];
    for (int64_t i = 0; i < y.cols; i += kPiece) {
      const int64_t m = std::min(kPiece, y.cols - i);
      load(offset(y.row(r), y.dtype, i), y.dtype, v, m);
      use(i, v, m);
    }
  };
  float factor = format::fp8_static_inverse(to.rounding.scale);
  if (f == InputFormat::fp8_token) {
    uint32_t largest = 0;
    pieces([&](int64_t, const float* v, int64_t m) {
      for (int64_t c = 0; c < m; ++c) largest = format::amax_bits(largest, v[c]);
    });
    factor = to.row_scales[r] = format::fp8_scale(format::amax_value(largest));
  }
  pieces([&](int64_t i, const float* v, int64_t m) {
    if (f == InputFormat::fp8_static)
      for (int64_t c = 0; c < m; ++c) codes[i + c] = format::fp8_static_code(v[c], factor);
    if (f == InputFormat::fp8_token)
      for (int64_t c = 0; c < m; ++c) codes[i + c] = format::fp8_code(v[c], factor);
    if (f == InputFormat::fp8_group)
      for (int64_t c = 0; c < m; c += 128)
        reinterpret_cast<float*>(scales)[(i + c) / 128] =
            format::quantize_group_fp8(v + c, std::min<int64_t>(128, m - c), codes + i + c);
    if (f == InputFormat::mxfp8)
      for (int64_t c = 0; c < m; c += 32)
        scales[(i + c) / 32] = static_cast<std::byte>(
            format::quantize_group_mxfp8(v + c, static_cast<int>(std::min<int64_t>(32, m - c)), codes + i + c));
  });
}
}  // namespace

void CpuOps::rms_norm(ConstMatrix x, const RmsNorm& norm, Matrix y, const RoundedRows& rounded) {
  parallel_rows(ctx(), x.rows, x.cols * 2, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      norm_row(x.row(r), x.dtype, norm.weight.as<float>(), x.cols, norm.eps, y.row(r), y.dtype);
      if (rounded) round_row(y, r, rounded);
    }
  });
}

Matrix CpuOps::sum_of(const ExpertResults& experts, Matrix x) {
  const Matrix sum = workspace().matrix(x.dtype, x.rows, x.cols);
  const int64_t rows = experts.num_rows == nullptr ? x.rows : std::clamp<int64_t>(*experts.num_rows, 0, x.rows);
  const std::vector<float> ones(static_cast<size_t>(experts.top_k), 1.0f);
  const kernels::cpu::KernelTable& kernels = kernels::cpu::row_operations(isa_);
  parallel_rows(ctx(), x.rows, x.cols * experts.top_k, [&](int64_t begin, int64_t end) {
    std::vector<const void*> results(static_cast<size_t>(experts.top_k));
    for (int64_t r = begin; r < end; ++r) {
      for (int64_t k = 0; k < experts.top_k; ++k)
        results[static_cast<size_t>(k)] = offset(experts.results, x.dtype, (r * experts.top_k + k) * x.cols);
      kernels::cpu::WeightedSumArgs args;
      args.rows = results.data();
      args.weights = experts.weights == nullptr ? ones.data() : experts.weights + r * experts.top_k;
      args.count = r < rows ? static_cast<int>(experts.top_k) : 0;
      args.bf16 = x.dtype == DType::bf16;
      args.cols = x.cols;
      args.out = sum.row(r);
      kernels.weighted_sum(args);
    }
  });
  return sum;
}

void CpuOps::add_rms_norm(Matrix x, const Change& change, const RmsNorm& norm, Matrix y, const RoundedRows& rounded) {
  const Workspace::Scope scope(workspace());
  const ConstMatrix one = change.experts.results == nullptr ? change.first : sum_of(change.experts, x);
  const ConstMatrix& two = change.second;
  parallel_rows(ctx(), x.rows, x.cols * 3, [&](int64_t begin, int64_t end) {
    float a[kPiece], b[kPiece], c[kPiece];
    for (int64_t r = begin; r < end; ++r) {
      for (int64_t i = 0; i < x.cols; i += kPiece) {
        const int64_t n = std::min(kPiece, x.cols - i);
        load(offset(x.row(r), x.dtype, i), x.dtype, a, n);
        load(offset(one.row(r), one.dtype, i), one.dtype, b, n);
        if (two.data != nullptr) {
          load(offset(two.row(r), two.dtype, i), two.dtype, c, n);
          cpu::add(b, c, b, n);
          round_to(x.dtype, b, n);
        }
        cpu::add(a, b, a, n);
        store(a, offset(x.row(r), x.dtype, i), x.dtype, n);
      }
      norm_row(x.row(r), x.dtype, norm.weight.as<float>(), x.cols, norm.eps, y.row(r), y.dtype);
      if (rounded) round_row(y, r, rounded);
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
