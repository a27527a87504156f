// SPDX-License-Identifier: Apache-2.0
// One dense matrix on the host.
#include <memory>

#include "base/named.h"
#include "capi/context.h"
#include "capi/status.h"
#include "capi/view.h"
#include "moe/check.h"
#include "ops/linear.h"

using namespace sluice;
using capi::guard;
using capi::read_struct;
using capi::required;

struct sluice_gemm {
  std::shared_ptr<capi::SharedContext> shared;
  DType dtype;
  std::unique_ptr<ops::Linear> linear;
};

namespace {

int64_t workspace_bytes(const sluice_gemm& gemm, int64_t tokens) {
  check(tokens >= 0, "tokens is {}; it must be 0 or more", tokens);
  return tokens == 0 ? 0 : gemm.linear->workspace_bytes(tokens);
}

std::unique_ptr<sluice_gemm> make_gemm(sluice_context& context, const sluice_gemm_options& o) {
  check(o.rows > 0 && o.cols > 0, "the matrix is [{}, {}]; both must be positive", o.rows, o.cols);
  const format::Format format =
      parse_name(format::kFormats, "options.weights", &required(o.weights, "options.weights"));
  ops::LinearOptions options;
  options.inputs =
      o.inputs == nullptr ? format::info(format).input : parse_name(format::kInputFormats, "options.inputs", o.inputs);
  options.dtype = capi::dtype_of(o.dtype, "options.dtype");
  options.input_scale = o.input_scale == 0 ? 1 : o.input_scale;
  check(format::fits(format, options.inputs), "options.inputs is {} with weights {}; nobody multiplies these",
        name_of(format::kInputFormats, options.inputs), name_of(format::kFormats, format));
  check(!format::is_static(options.inputs) || options.input_scale > 0,
        "the input scale is {}; inputs {} need a positive one", options.input_scale,
        name_of(format::kInputFormats, options.inputs));
  const weights::QuantTensor w = capi::view_matrices(format, 1, "w", o.w, o.rows, o.cols);
  const Tensor bias = o.bias == nullptr ? Tensor{} : Tensor(DType::f32, {o.rows}, o.bias, nullptr);
  auto made = std::make_unique<sluice_gemm>(sluice_gemm{context.shared, options.dtype, nullptr});
  made->shared->use([&](Context& ctx) { made->linear = ops::make_linear(ctx, {&w, 1}, bias, options); });
  return made;
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
    *out =
        make_gemm(required(context, "context"), read_struct(options, "options", sizeof(sluice_gemm_options))).release();
  });
}

void sluice_gemm_destroy(sluice_gemm* gemm) { delete gemm; }

sluice_status sluice_gemm_workspace_bytes(const sluice_gemm* gemm, int64_t tokens, int64_t* out) {
  return guard([&] { required(out, "out") = workspace_bytes(required(gemm, "gemm"), tokens); });
}

sluice_status sluice_gemm_run(const sluice_gemm* gemm, const sluice_gemm_args* args) {
  return guard([&] { run(required(gemm, "gemm"), read_struct(args, "args", sizeof(sluice_gemm_args))); });
}
}
