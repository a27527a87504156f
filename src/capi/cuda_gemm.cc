// SPDX-License-Identifier: Apache-2.0
// Quantisers and the dense GEMM over raw device pointers. The GEMM is sm90::DenseGemm and not ops::Linear, which is
// made for models: callers give codes and scales as well as rows, the number of tokens in device memory, and a stream
// of their own.
#include <cstddef>

#include "capi/quantize.h"
#include "capi/status.h"
#include "capi/view.h"
#include "device/cuda.h"
#if defined(SLUICE_WITH_CUDA)
#include "kernels/sm90/dense/dense_gemm.h"
#include "kernels/sm90/quantize/four_over_six.h"
#include "kernels/sm90/quantize/tensor.h"
#include "moe/check.h"
#endif

using namespace sluice;
using capi::guard;
using capi::read_struct;
using capi::required;

struct sluice_cuda_gemm {
#if defined(SLUICE_WITH_CUDA)
  sm90::DenseGemm gemm;
#endif
};

namespace {

#if defined(SLUICE_WITH_CUDA)

sm90::DenseSpec gemm_spec(const sluice_gemm_options& o) {
  sm90::DenseSpec spec;
  spec.rows = o.rows;
  spec.cols = o.cols;
  check(o.rows > 0 && o.cols > 0, "the matrix is [{}, {}]; both must be positive", o.rows, o.cols);
  capi::check_elements("the matrix is", {o.rows, o.cols});
  spec.weights = parse_name(format::kFormats, "options.weights", &required(o.weights, "options.weights"));
  spec.inputs = o.inputs == nullptr ? format::info(spec.weights).input
                                    : parse_name(format::kInputFormats, "options.inputs", o.inputs);
  spec.dtype = capi::dtype_of(o.dtype, "options.dtype");
  spec.fp8_f32_sums = o.fp8_f32_sums != 0;
  spec.deterministic = o.deterministic != 0;
  return spec;
}

sm90::DenseSpec supported_spec(const sluice_gemm_options& o) {
  const sm90::DenseSpec spec = gemm_spec(o);
  if (const Support s = sm90::supports_dense(spec); !s) fail(ErrorCode::unsupported, "sm90: {}", s.reason);
  return spec;
}

void check_aligned(const char* what, const void* pointer) {
  check(reinterpret_cast<uintptr_t>(pointer) % 16 == 0, "{} is not aligned to 16 bytes", what);
}

void set_weights(sm90::DenseGemm& gemm, const sluice_matrices& w, float given_scale, const float* bias, void* stream) {
  const sm90::DenseSpec& spec = gemm.spec();
  const float scale = capi::read_input_scale(spec.inputs, given_scale);
  gemm.set_weights(capi::view_matrices(spec.weights, 1, "w", w, spec.rows, spec.cols), scale,
                   bias == nullptr ? Tensor{} : Tensor(DType::f32, {spec.rows}, bias, nullptr), stream);
}

void make_gemm(const sluice_gemm_options* given, int device, void* data, int64_t size, void* stream,
               sluice_cuda_gemm** out) {
  required(out, "out") = nullptr;
  const sm90::CallerMemory memory{data, size, stream};
  const auto o = read_struct(given, "options", sizeof(sluice_gemm_options));
  const sm90::DenseSpec spec = supported_spec(o);
  make_cuda_device(device);  // refuses a device that is not a Hopper GPU
  const sm90::DeviceGuard guard(device);
  auto made = std::make_unique<sluice_cuda_gemm>(sluice_cuda_gemm{sm90::DenseGemm(spec, 0, memory)});
  set_weights(made->gemm, o.w, o.input_scale, o.bias, stream);
  *out = made.release();
}

int64_t prepared_bytes(const sluice_gemm_options& o) { return sm90::dense_memory(supported_spec(o)).bytes; }

void refit(sluice_cuda_gemm& gemm, const sluice_matrices& w, float input_scale, const float* bias, void* stream) {
  set_weights(gemm.gemm, w, input_scale, bias, stream);
}

int64_t workspace_bytes(const sluice_cuda_gemm& gemm, int64_t tokens) {
  check(tokens >= 0, "tokens is {}; it must not be negative", tokens);
  return gemm.gemm.workspace_bytes(tokens);
}

void run(const sluice_cuda_gemm& gemm, const sluice_cuda_gemm_args& a, const capi::CudaQueue& queue) {
  sm90::DenseCall call;
  call.tokens = a.tokens;
  call.num_tokens = queue.num_tokens;
  call.x = a.x;
  call.codes = a.codes;
  call.scales = a.scales;
  call.layout = capi::layout_of(a.layout);
  call.row_scales = a.row_scales;
  call.y = a.y;
  call.workspace = a.workspace;
  call.workspace_size = a.workspace_size;
  call.pdl = queue.pdl;
  sm90::check_dense_call(gemm.gemm.spec(), call);
  moe::check_workspace(a.workspace, a.workspace_size, a.tokens, workspace_bytes(gemm, a.tokens), Device::kAlignment);
  check_aligned("x", a.x);
  check_aligned("codes", a.codes);
  check_aligned("y", a.y);
  gemm.gemm.run(call, queue.stream);
}

// Rows [T, K] to codes and scales, bit for bit sluice_quantize().
void quantize(const sluice_quantize_args& given, const capi::CudaQueue& queue) {
  const capi::QuantizeCall call = capi::read_quantize_args(given);
  const format::CodedTensor& to = call.to;
  check(to.cols < (int64_t{1} << 30), "x has {} columns; accepted: fewer than 2^30", to.cols);
  if (to.rows == 0 || to.cols == 0) return;
  check_aligned("x", given.x);
  check_aligned("codes", given.codes);
  sm90::QuantizeArgs a{};
  a.coding = to.coding;
  a.x = given.x;
  a.x_f32 = call.dtype == DType::f32;
  a.rows = to.rows;
  a.cols = static_cast<int>(to.cols);
  a.input_scale = given.input_scale;
  a.encodes = call.to.encodes;
  a.codes = to.codes;
  a.scales = to.scales;
  a.layout = to.layout;
  a.row_scales = to.row_scales;
  if (to.four_over_six.on)
    sm90::launch_quantize_four_over_six(a, to.four_over_six, queue.stream, queue.pdl);
  else
    sm90::launch_quantize(a, queue.stream, queue.pdl);
}

#else

[[noreturn]] void no_cuda() { fail(ErrorCode::unsupported, "this library was built without CUDA"); }
void make_gemm(const sluice_gemm_options*, int, void*, int64_t, void*, sluice_cuda_gemm** out) {
  required(out, "out") = nullptr;
  no_cuda();
}
void quantize(const sluice_quantize_args&, const capi::CudaQueue&) { no_cuda(); }
int64_t prepared_bytes(const sluice_gemm_options&) { no_cuda(); }
void refit(sluice_cuda_gemm&, const sluice_matrices&, float, const float*, void*) { no_cuda(); }
int64_t workspace_bytes(const sluice_cuda_gemm&, int64_t) { no_cuda(); }
void run(const sluice_cuda_gemm&, const sluice_cuda_gemm_args&, const capi::CudaQueue&) { no_cuda(); }

#endif

}  // namespace

extern "C" {

sluice_status sluice_cuda_quantize(const sluice_quantize_args* args, const sluice_cuda_queue* queue) {
  return guard(
      [&] { quantize(read_struct(args, "args", offsetof(sluice_quantize_args, encodes)), capi::read_queue(queue)); });
}

sluice_status sluice_cuda_gemm_create(const sluice_gemm_options* options, int device, void* stream,
                                      sluice_cuda_gemm** out) {
  return guard([&] { make_gemm(options, device, nullptr, 0, stream, out); });
}

sluice_status sluice_cuda_gemm_prepared_bytes(const sluice_gemm_options* options, int64_t* out) {
  return guard(
      [&] { required(out, "out") = prepared_bytes(read_struct(options, "options", sizeof(sluice_gemm_options))); });
}

sluice_status sluice_cuda_gemm_prepare_into(const sluice_gemm_options* options, int device, void* memory,
                                            int64_t memory_size, void* stream, sluice_cuda_gemm** out) {
  return guard([&] {
    check(memory != nullptr, "memory is NULL; it must be given");
    make_gemm(options, device, memory, memory_size, stream, out);
  });
}

sluice_status sluice_cuda_gemm_refit(sluice_cuda_gemm* gemm, const sluice_matrices* w, float input_scale,
                                     const float* bias, void* stream) {
  return guard([&] { refit(required(gemm, "gemm"), required(w, "w"), input_scale, bias, stream); });
}

void sluice_cuda_gemm_destroy(sluice_cuda_gemm* gemm) { delete gemm; }

sluice_status sluice_cuda_gemm_workspace_bytes(const sluice_cuda_gemm* gemm, int64_t tokens, int64_t* out) {
  return guard([&] { required(out, "out") = workspace_bytes(required(gemm, "gemm"), tokens); });
}

sluice_status sluice_cuda_gemm_run(const sluice_cuda_gemm* gemm, const sluice_cuda_gemm_args* args,
                                   const sluice_cuda_queue* queue) {
  return guard([&] {
    run(required(gemm, "gemm"), read_struct(args, "args", sizeof(sluice_cuda_gemm_args)), capi::read_queue(queue));
  });
}
}
