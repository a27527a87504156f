// SPDX-License-Identifier: Apache-2.0
// The operation over raw device pointers.
#include "capi/status.h"
#include "capi/view.h"
#include "moe/device.h"

using namespace sluice;
using capi::guard;
using capi::read_struct;
using capi::required;

struct sluice_cuda_moe {
  std::unique_ptr<moe::DeviceMoe> moe;
};
struct sluice_cuda_gemm {
  std::unique_ptr<moe::DeviceGemm> gemm;
};

namespace {

moe::DeviceQueue read_queue(const sluice_cuda_queue* given) {
  if (given == nullptr) return {};
  const auto q = read_struct(given, "queue", sizeof(sluice_cuda_queue));
  return {q.stream, q.num_tokens, q.no_pdl == 0};
}

format::ScaleLayout layout_of(sluice_scale_layout layout) {
  check(layout >= SLUICE_SCALES_128X4 && layout <= SLUICE_SCALES_TRANSPOSED,
        "layout is {}; accepted: SLUICE_SCALES_128X4, _8X4, _LINEAR, _TRANSPOSED", layout);
  return static_cast<format::ScaleLayout>(layout);
}

}  // namespace

extern "C" {

sluice_status sluice_cuda_moe_create(const char* spec_line, int device, const sluice_moe_weights* weights, void* stream,
                                     sluice_cuda_moe** out) {
  return guard([&] {
    required(out, "out") = nullptr;
    const MoeSpec spec = parse_moe_spec(&required(spec_line, "spec"));
    validate(spec);
    auto made = std::make_unique<sluice_cuda_moe>();
    made->moe = moe::make_device_moe(spec, capi::view_weights(spec, weights), device, stream);
    *out = made.release();
  });
}

sluice_status sluice_cuda_moe_refit(sluice_cuda_moe* moe, const sluice_moe_weights* weights, void* stream) {
  return guard([&] {
    moe::DeviceMoe& layer = *required(moe, "moe").moe;
    layer.refit(capi::view_weights(layer.spec(), weights), stream);
  });
}

void sluice_cuda_moe_destroy(sluice_cuda_moe* moe) { delete moe; }

sluice_status sluice_cuda_moe_workspace_bytes(const sluice_cuda_moe* moe, int64_t tokens, int64_t* out) {
  return guard([&] { required(out, "out") = required(moe, "moe").moe->workspace_bytes(tokens); });
}

sluice_status sluice_cuda_moe_run(const sluice_cuda_moe* moe, const sluice_moe_args* args,
                                  const sluice_cuda_queue* queue) {
  return guard([&] { required(moe, "moe").moe->run(capi::read_args(args), read_queue(queue)); });
}

sluice_status sluice_scale_elements(sluice_scale_layout layout, int64_t rows, int64_t groups, int64_t* out) {
  return guard([&] {
    check(rows >= 0 && groups >= 0, "rows is {} and groups {}; neither may be negative", rows, groups);
    required(out, "out") = format::scale_elements(layout_of(layout), rows, groups);
  });
}

sluice_status sluice_cuda_quantize(const sluice_cuda_quantize_args* given, const sluice_cuda_queue* queue) {
  return guard([&] {
    const auto a = read_struct(given, "args", sizeof(sluice_cuda_quantize_args));
    moe::QuantizeCall c;
    c.coding = &required(a.coding, "args.coding");
    c.x = a.x;
    c.dtype = capi::dtype_of(a.dtype, "args.dtype");
    c.rows = a.rows;
    c.cols = a.cols;
    c.input_scale = a.input_scale;
    c.codes = a.codes;
    c.scales = a.scales;
    c.layout = layout_of(a.layout);
    c.row_scales = a.row_scales;
    moe::device_quantize(c, read_queue(queue));
  });
}

sluice_status sluice_cuda_gemm_create(const sluice_cuda_gemm_options* given, int device, void* stream,
                                      sluice_cuda_gemm** out) {
  return guard([&] {
    required(out, "out") = nullptr;
    const auto o = read_struct(given, "options", sizeof(sluice_cuda_gemm_options));
    moe::GemmSpec spec;
    spec.rows = o.rows;
    spec.cols = o.cols;
    check(o.rows > 0 && o.cols > 0, "the matrix is [{}, {}]; both must be positive", o.rows, o.cols);
    spec.weights = parse_name(format::kFormats, "options.weights", &required(o.weights, "options.weights"));
    spec.inputs = o.inputs == nullptr ? format::info(spec.weights).input
                                      : parse_name(format::kInputFormats, "options.inputs", o.inputs);
    spec.dtype = capi::dtype_of(o.dtype, "options.dtype");
    const auto w = capi::view_matrices(spec.weights, 1, "w", o.w, o.rows, o.cols);
    const Tensor bias = o.bias == nullptr ? Tensor{} : Tensor(DType::f32, {o.rows}, o.bias, nullptr);
    auto made = std::make_unique<sluice_cuda_gemm>();
    made->gemm = moe::make_device_gemm(spec, w, o.input_scale, bias, device, stream);
    *out = made.release();
  });
}

void sluice_cuda_gemm_destroy(sluice_cuda_gemm* gemm) { delete gemm; }

sluice_status sluice_cuda_gemm_workspace_bytes(const sluice_cuda_gemm* gemm, int64_t tokens, int64_t* out) {
  return guard([&] { required(out, "out") = required(gemm, "gemm").gemm->workspace_bytes(tokens); });
}

sluice_status sluice_cuda_gemm_run(const sluice_cuda_gemm* gemm, const sluice_cuda_gemm_args* given,
                                   const sluice_cuda_queue* queue) {
  return guard([&] {
    const auto a = read_struct(given, "args", sizeof(sluice_cuda_gemm_args));
    moe::GemmArgs args;
    args.tokens = a.tokens;
    args.x = a.x;
    args.codes = a.codes;
    args.scales = a.scales;
    args.layout = layout_of(a.layout);
    args.row_scales = a.row_scales;
    args.y = a.y;
    args.workspace = a.workspace;
    required(gemm, "gemm").gemm->run(args, read_queue(queue));
  });
}
}
