// SPDX-License-Identifier: Apache-2.0
#include "ops/cpu/linear.h"

#include <algorithm>
#include <cstring>

#include "base/math.h"
#include "kernels/cpu/grouped_gemm.h"
#include "ops/cpu/parallel.h"
#include "ops/cpu/row.h"
#include "ops/cpu/tile.h"
#include "ops/linear_checks.h"

namespace sluice::ops::cpu {

using kernels::cpu::kNTile;

namespace {
// Rows of x that are multiplied at once; longer batches come in pieces, so that working memory stays small.
constexpr int64_t kMaxRows = 1024;

// The workspace has room for `threads`.
void check_run(const Linear& linear, const Context& ctx, int threads, ConstMatrix x, Matrix y, int64_t workspace_size) {
  check(ctx.pool.size() <= threads, "the layer was prepared for {} threads and is run by {}", threads, ctx.pool.size());
  check_shapes(linear, x, y);
  check((x.dtype == DType::bf16 || x.dtype == DType::f32) && (y.dtype == DType::bf16 || y.dtype == DType::f32),
        "x is {} and y {}; both must be bfloat16 or float32", to_string(x.dtype), to_string(y.dtype));
  const int64_t needed = linear.workspace_bytes(x.rows);
  check(workspace_size >= needed, "the workspace has {} bytes; {} rows need {}", workspace_size, x.rows, needed);
}

void check_supported(kernels::cpu::Isa isa, format::Format weights, format::InputFormat inputs) {
  if (const Support s = kernels::cpu::cpu_kernel_supported(isa, weights, inputs); !s)
    fail(ErrorCode::unsupported, "{}", s.reason);
}

void check_memory(const WeightMemory& memory, std::span<const weights::QuantTensor> matrices) {
  int64_t needed = 0;
  for (const weights::QuantTensor& w : matrices)
    needed += kernels::cpu::PackedWeights::packed_bytes(w.format, 1, w.rows, w.cols, false);
  check(memory.size >= needed, "memory has {} bytes; the prepared weights need {}", memory.size, needed);
  check(reinterpret_cast<uintptr_t>(memory.data) % 64 == 0, "memory is not aligned to 64 bytes");
}

// As float32; empty stays empty.
Tensor float_bias(const Tensor& bias, int64_t rows) {
  if (bias.empty()) return {};
  check_bias(bias, rows);
  Tensor out(DType::f32, {rows});
  load(bias.data(), bias.dtype(), out.as<float>(), rows);
  return out;
}
}  // namespace

struct CpuLinear::Memory {
  kernels::cpu::PackedRows x;
  float* staging = nullptr;  // [threads, padded K]
  kernels::cpu::GemmWorkspace gemm;
};

CpuLinear::CpuLinear(Context& ctx, std::span<const weights::QuantTensor> parts, const Tensor& bias,
                     const LinearOptions& options, std::optional<kernels::cpu::Isa> isa, const WeightMemory& memory)
    : options_(options), threads_(ctx.pool.size()) {
  check_parts(parts);
  for (const weights::QuantTensor& w : parts) outputs_ += w.rows;
  const kernels::cpu::Isa level = isa.value_or(kernels::cpu::best_isa());
  check_supported(level, parts[0].format, options.inputs);
  choice_ = kernels::cpu::choose_cpu_kernel(level, parts[0].format, options.inputs, options.dtype);
  bias_ = float_bias(bias, outputs_);
  const std::optional<weights::QuantTensor> one = weights::concatenate_rows(parts);
  const std::span<const weights::QuantTensor> matrices = one ? std::span(&*one, 1) : parts;
  if (memory.data != nullptr) check_memory(memory, matrices);
  kernels::cpu::BumpAllocator given(memory.data);
  for (const weights::QuantTensor& w : matrices)
    parts_.emplace_back(ctx, w, nullptr, choice_.fp8_order, memory.data == nullptr ? nullptr : &given);
}

int64_t CpuLinear::prepared_bytes(format::Format weights, format::InputFormat inputs, int64_t n, int64_t k) {
  check_supported(kernels::cpu::best_isa(), weights, inputs);
  return kernels::cpu::PackedWeights::packed_bytes(weights, 1, n, k, false);
}

void CpuLinear::refit(Context& ctx, const weights::QuantTensor& w, const Tensor& bias, float input_scale) {
  check(parts_.size() == 1, "a refit takes one matrix; the layer has {}", parts_.size());
  check(bias.empty() == bias_.empty(), "a refit cannot add or drop the bias");
  Tensor biases = float_bias(bias, outputs_);
  parts_[0].refit(ctx, w, nullptr);
  bias_ = std::move(biases);
  options_.input_scale = input_scale;
}

int64_t CpuLinear::weight_bytes() const {
  int64_t bytes = 0;
  for (const kernels::cpu::PackedWeights& p : parts_) bytes += p.bytes();
  return bytes;
}

int64_t CpuLinear::lay_out(void* base, int64_t rows, Memory* out) const {
  kernels::cpu::BumpAllocator c(base);
  const int64_t padded = parts_.front().padded_k();
  out->x = allocate_packed_rows(c, choice_, rows, inputs(), padded);
  out->staging = c.allocate<float>(threads_ * padded);
  out->gemm = kernels::cpu::allocate_gemm_workspace(c, threads_, 1, rows);
  return c.used();
}

int64_t CpuLinear::workspace_bytes(int64_t rows) const {
  Memory unused;
  return lay_out(nullptr, std::min(rows, kMaxRows), &unused);
}

void CpuLinear::run(Context& ctx, const LinearInput& input, Matrix y, void* workspace, int64_t workspace_size) const {
  const ConstMatrix& x = input.rows;
  check_run(*this, ctx, threads_, x, y, workspace_size);
  for (int64_t first = 0; first < x.rows; first += kMaxRows) {
    const int64_t rows = std::min(kMaxRows, x.rows - first);
    Memory m;
    lay_out(workspace, rows, &m);
    const int64_t padded = parts_.front().padded_k();
    // Levels below avx512_bf16 multiply floats: without this they would keep what the run's type does not hold.
    const bool round_first = options_.inputs == format::InputFormat::plain && options_.dtype == DType::bf16;
    ctx.pool.parallel_for(rows, [&](int64_t r, int worker) {
      pack_row(m.x, r, {x.row(first + r), x.dtype, round_first}, options_.input_scale, m.staging + worker * padded);
    });
    int64_t col = 0;
    for (const kernels::cpu::PackedWeights& part : parts_) {
      multiply(ctx, m, rows, part, col, {y.row(first), y.dtype, rows, y.cols, y.stride});
      col += part.n();
    }
  }
}

void CpuLinear::multiply(Context& ctx, const Memory& m, int64_t rows, const kernels::cpu::PackedWeights& part,
                         int64_t first_col, Matrix y) const {
  const int32_t offsets[2] = {0, static_cast<int32_t>(rows)};
  grouped_gemm(ctx, m.x, part, {1, offsets, nullptr}, m.gemm, [&](const kernels::cpu::OutputTile& t) {
    const int64_t col = t.n_tile * kNTile, cols = std::min<int64_t>(kNTile, part.n() - col);
    for (int i = 0; i < t.m; ++i) {
      float* values = t.values + int64_t{i} * kNTile;
      if (!bias_.empty()) cpu::add(values, bias_.as<float>() + first_col + col, values, cols);
      void* out = offset(y.row(t.row + i), y.dtype, first_col + col);
      if (y.dtype == DType::bf16)
        choice_.row_ops->round_bf16(values, static_cast<uint16_t*>(out), cols);
      else
        std::memcpy(out, values, static_cast<size_t>(cols) * 4);
    }
  });
}

CpuFloatLinear::CpuFloatLinear(Context& ctx, Tensor weight, Tensor bias)
    : weight_(std::move(weight)), threads_(ctx.pool.size()) {
  check(weight_.rank() == 2 && weight_.dtype() == DType::f32, "the weight is {} {}; a float32 matrix is expected",
        to_string(weight_.dtype()), to_string(weight_.shape()));
  bias_ = float_bias(bias, weight_.dim(0));
}

int64_t CpuFloatLinear::workspace_bytes(int64_t rows) const {
  return 4 * (rows + threads_ * (kTile + 1)) * round_up<int64_t>(inputs(), 16) + 4 * threads_ * kTile;
}

void CpuFloatLinear::run(Context& ctx, const LinearInput& input, Matrix y, void* workspace,
                         int64_t workspace_size) const {
  const ConstMatrix& x = input.rows;
  check_run(*this, ctx, threads_, x, y, workspace_size);
  const int64_t n = outputs(), k = inputs(), stride = round_up<int64_t>(k, 16);
  const auto pad = [&](const void* src, DType dtype, float* dst) {
    load(src, dtype, dst, k);
    std::fill(dst + k, dst + stride, 0.0f);
  };
  auto* xs = static_cast<float*>(workspace);
  for (int64_t r = 0; r < x.rows; ++r) pad(x.row(r), x.dtype, xs + r * stride);
  const int64_t floats = kTile * (stride + 1);
  float* memory = xs + x.rows * stride;
  parallel(ctx, ceil_div(n, kTile), x.rows * n * k, [&](int64_t t, int worker) {
    float *tile = memory + worker * floats, *result = tile + kTile * stride;
    const int64_t first = t * kTile, count = std::min(kTile, n - first);
    for (int64_t i = 0; i < count; ++i) pad(weight_.as<float>() + (first + i) * k, DType::f32, tile + i * stride);
    for (int64_t r = 0; r < x.rows; ++r) {
      dot_rows(xs + r * stride, tile, stride, count, 1.0f, result);
      if (!bias_.empty()) cpu::add(result, bias_.as<float>() + first, result, count);
      store(result, offset(y.row(r), y.dtype, first), y.dtype, count);
    }
  });
}

}  // namespace sluice::ops::cpu
