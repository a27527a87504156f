// SPDX-License-Identifier: Apache-2.0
#include "ops/linear.h"

#include <algorithm>
#include <cstring>

#include "kernels/cpu/grouped_gemm.h"

namespace sluice::ops {

using kernels::cpu::kTileCols;

namespace {
// Rows of x that are multiplied at once; longer batches come in pieces, so that working memory stays small.
constexpr int64_t kMaxRows = 1024;

struct Memory {
  kernels::cpu::Operand x;
  float* staging;
  kernels::cpu::GemmMemory gemm;
};
}  // namespace

Linear::Linear(Context& ctx, const weights::QuantTensor& w, const Tensor& bias, const LinearOptions& options)
    : options_(options) {
  check(w.experts == 1, "a linear layer takes one matrix, not a stack of {}", w.experts);
  const kernels::cpu::Isa isa = options.isa.value_or(kernels::cpu::best_isa());
  if (const Support s = kernels::cpu::gemm_supported(isa, w.format, options.inputs); !s)
    fail(ErrorCode::unsupported, "{}", s.reason);
  choice_ = kernels::cpu::choose_gemm(isa, w.format, options.inputs, options.dtype);
  weights_ = weights::PanelStack(ctx, w, nullptr, choice_.order);
  if (bias.empty()) return;
  check(bias.elements() == w.rows && (bias.dtype() == DType::f32 || bias.dtype() == DType::bf16),
        "bias has {} elements of {}; {} of float32 or bfloat16 are expected", bias.elements(), to_string(bias.dtype()),
        w.rows);
  bias_ = Tensor(DType::f32, {w.rows});
  for (int64_t i = 0; i < w.rows; ++i)
    bias_.as<float>()[i] = bias.dtype() == DType::f32 ? bias.as<float>()[i] : bf16_to_float(bias.as<uint16_t>()[i]);
}

void Linear::run(Context& ctx, ConstMatrix x, Matrix y) const {
  check(x.cols == inputs() && y.cols == outputs() && x.rows == y.rows,
        "x is [{}, {}] and y [{}, {}]; the layer maps [T, {}] to [T, {}]", x.rows, x.cols, y.rows, y.cols, inputs(),
        outputs());
  check((x.dtype == DType::bf16 || x.dtype == DType::f32) && (y.dtype == DType::bf16 || y.dtype == DType::f32),
        "x is {} and y {}; both must be bfloat16 or float32", to_string(x.dtype), to_string(y.dtype));
  const int workers = ctx.pool.size();
  for (int64_t first = 0; first < x.rows; first += kMaxRows) {
    const int64_t rows = std::min(kMaxRows, x.rows - first);
    const auto carve = [&](void* base, Memory* m) {
      kernels::cpu::Carver c(base);
      m->x = carve_operand(c, choice_, rows, inputs(), weights_.padded_cols());
      m->staging = c.take<float>(workers * weights_.padded_cols());
      m->gemm = kernels::cpu::carve_gemm_memory(c, workers, 1, rows);
      return c.used();
    };
    Memory m{};
    const int64_t bytes = carve(nullptr, &m);
    carve(ctx.pool.scratch(static_cast<size_t>(bytes)), &m);

    ctx.pool.parallel_for(rows, [&](int64_t r, int worker) {
      prepare_operand_row(m.x, r, {x.row(first + r), x.dtype, false}, options_.input_scale,
                          m.staging + worker * weights_.padded_cols());
    });
    const int32_t offsets[2] = {0, static_cast<int32_t>(rows)};
    grouped_gemm(ctx, m.x, weights_, {1, offsets, nullptr}, m.gemm, [&](const kernels::cpu::TileOut& t) {
      const int64_t col = t.unit * kTileCols, cols = std::min<int64_t>(kTileCols, outputs() - col);
      for (int i = 0; i < t.m; ++i) {
        float* values = t.values + int64_t{i} * kTileCols;
        if (!bias_.empty())
          for (int64_t c = 0; c < cols; ++c) values[c] += bias_.as<float>()[col + c];
        std::byte* out = static_cast<std::byte*>(y.row(first + t.row + i)) + col * bytes_of(y.dtype);
        if (y.dtype == DType::bf16)
          choice_.rows->round_bf16(values, reinterpret_cast<uint16_t*>(out), cols);
        else
          std::memcpy(out, values, static_cast<size_t>(cols) * 4);
      }
    });
  }
}

}  // namespace sluice::ops
