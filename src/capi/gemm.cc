// SPDX-License-Identifier: Apache-2.0
// One dense matrix on the host.
#include <memory>

#include "base/named.h"
#include "capi/context.h"
#include "capi/status.h"
#include "capi/view.h"
#include "moe/check.h"
#include "ops/cpu/linear.h"

using namespace sluice;
using capi::guard;
using capi::read_struct;
using capi::required;

struct sluice_gemm {
  std::shared_ptr<capi::SharedContext> shared;
  format::Format format;
  format::InputFormat inputs;
  DType dtype;
  std::unique_ptr<ops::cpu::CpuLinear> linear;
};

namespace {

int64_t workspace_bytes(const sluice_gemm& gemm, int64_t tokens) {
  check(tokens >= 0, "tokens is {}; it must be 0 or more", tokens);
  return tokens == 0 ? 0 : gemm.linear->workspace_bytes(tokens);
}

// What the options ask for, without the matrix: the format of the weights, and how inputs are taken.
struct Product {
  format::Format format;
  ops::LinearOptions options;
};

Product read_product(const sluice_gemm_options& o) {
  check(o.rows > 0 && o.cols > 0, "the matrix is [{}, {}]; both must be positive", o.rows, o.cols);
  capi::check_elements("the matrix is", {o.rows, o.cols});
  Product p{parse_name(format::kFormats, "options.weights", &required(o.weights, "options.weights")), {}};
  p.options.inputs = o.inputs == nullptr ? format::info(p.format).input
                                         : parse_name(format::kInputFormats, "options.inputs", o.inputs);
  p.options.dtype = capi::dtype_of(o.dtype, "options.dtype");
  check(format::fits(p.format, p.options.inputs), "options.inputs is {} with weights {}; nobody multiplies these",
        name_of(format::kInputFormats, p.options.inputs), name_of(format::kFormats, p.format));
  return p;
}

Tensor view_bias(const float* bias, int64_t rows) {
  return bias == nullptr ? Tensor{} : Tensor(DType::f32, {rows}, bias, nullptr);
}

std::unique_ptr<sluice_gemm> make_gemm(sluice_context& context, const sluice_gemm_options& o,
                                       const ops::cpu::WeightMemory& memory) {
  Product p = read_product(o);
  p.options.input_scale = capi::read_input_scale(p.options.inputs, o.input_scale);
  const weights::QuantTensor w = capi::view_matrices(p.format, 1, "w", o.w, o.rows, o.cols);
  const Tensor bias = view_bias(o.bias, o.rows);
  auto made =
      std::make_unique<sluice_gemm>(sluice_gemm{context.shared, p.format, p.options.inputs, p.options.dtype, nullptr});
  made->shared->use([&](Context& ctx) {
    made->linear = std::make_unique<ops::cpu::CpuLinear>(ctx, std::span(&w, 1), bias, p.options, std::nullopt, memory);
  });
  return made;
}

int64_t prepared_bytes(const sluice_gemm_options& o) {
  const Product p = read_product(o);
  check(format::info(p.format).bits != 4 || o.cols % 2 == 0, "the matrix has {} columns; {} needs an even number",
        o.cols, name_of(format::kFormats, p.format));
  return ops::cpu::CpuLinear::prepared_bytes(p.format, p.options.inputs, o.rows, o.cols);
}

void refit(sluice_gemm& gemm, const sluice_matrices& matrix, float input_scale, const float* bias) {
  const int64_t n = gemm.linear->outputs();
  const float scale = capi::read_input_scale(gemm.inputs, input_scale);
  const weights::QuantTensor w = capi::view_matrices(gemm.format, 1, "w", matrix, n, gemm.linear->inputs());
  gemm.shared->use([&](Context& ctx) { gemm.linear->refit(ctx, w, view_bias(bias, n), scale); });
}

void run(const sluice_gemm& gemm, const sluice_gemm_args& args) {
  const int64_t needed = workspace_bytes(gemm, args.tokens);
  if (args.tokens == 0) return;
  check(args.x != nullptr, "args.x is NULL; it must be given");
  check(args.y != nullptr, "args.y is NULL; it must be given");
  void* workspace = args.workspace;
  int64_t size = args.workspace_size;
  Tensor own;
  if (workspace == nullptr) {
    own = Tensor(DType::u8, {needed});
    workspace = own.data();
    size = needed;
  }
  moe::check_workspace(workspace, size, args.tokens, needed, 64);
  const int64_t n = gemm.linear->outputs(), k = gemm.linear->inputs();
  gemm.shared->use([&](Context& ctx) {
    const ops::ConstMatrix x{args.x, gemm.dtype, args.tokens, k, k};
    gemm.linear->run(ctx, x, {args.y, gemm.dtype, args.tokens, n, n}, workspace, size);
  });
}

}  // namespace

extern "C" {

sluice_status sluice_gemm_create(sluice_context* context, const sluice_gemm_options* options, sluice_gemm** out) {
  return guard([&] {
    required(out, "out") = nullptr;
    const auto o = read_struct(options, "options", sizeof(sluice_gemm_options));
    *out = make_gemm(required(context, "context"), o, {}).release();
  });
}

sluice_status sluice_gemm_prepared_bytes(const sluice_gemm_options* options, int64_t* out) {
  return guard(
      [&] { required(out, "out") = prepared_bytes(read_struct(options, "options", sizeof(sluice_gemm_options))); });
}

sluice_status sluice_gemm_prepare_into(sluice_context* context, const sluice_gemm_options* options, void* memory,
                                       int64_t memory_size, sluice_gemm** out) {
  return guard([&] {
    required(out, "out") = nullptr;
    const auto o = read_struct(options, "options", sizeof(sluice_gemm_options));
    char* const data = &required(static_cast<char*>(memory), "memory");
    *out = make_gemm(required(context, "context"), o, {data, memory_size}).release();
  });
}

sluice_status sluice_gemm_refit(sluice_gemm* gemm, const sluice_matrices* w, float input_scale, const float* bias) {
  return guard([&] { refit(required(gemm, "gemm"), required(w, "w"), input_scale, bias); });
}

void sluice_gemm_destroy(sluice_gemm* gemm) { delete gemm; }

sluice_status sluice_gemm_workspace_bytes(const sluice_gemm* gemm, int64_t tokens, int64_t* out) {
  return guard([&] { required(out, "out") = workspace_bytes(required(gemm, "gemm"), tokens); });
}

sluice_status sluice_gemm_run(const sluice_gemm* gemm, const sluice_gemm_args* args) {
  return guard([&] { run(required(gemm, "gemm"), read_struct(args, "args", sizeof(sluice_gemm_args))); });
}
}
