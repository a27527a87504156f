// SPDX-License-Identifier: Apache-2.0
#include "moe/device.h"

#if defined(SLUICE_WITH_CUDA)

#include "kernels/sm90/dense/dense_gemm.h"
#include "kernels/sm90/fused_moe/fused_moe.h"
#include "moe/check.h"
#include "moe/sm90_call.h"

namespace sluice::moe {

namespace {

void check_device(const char* what, const void* pointer) {
  check(pointer == nullptr || reinterpret_cast<uintptr_t>(pointer) % 16 == 0, "{} is not aligned to 16 bytes", what);
}

class Moe : public DeviceMoe {
 public:
  Moe(const MoeSpec& spec, const weights::ExpertWeights& w, void* stream) : moe_(spec) {
    check_weights(spec, w);
    moe_.set_weights(w, stream);
  }
  const MoeSpec& spec() const override { return moe_.spec(); }
  int64_t weight_bytes() const override { return moe_.weight_bytes(); }
  int64_t workspace_bytes(int64_t tokens) const override {
    check(tokens >= 0, "tokens is {}; it must not be negative", tokens);
    return moe_.workspace_bytes(tokens);
  }
  void run(const MoeArgs& args, const DeviceQueue& queue) const override {
    check_args(moe_.spec(), args);
    check(args.tokens == 0 || (args.workspace != nullptr && reinterpret_cast<uintptr_t>(args.workspace) % 256 == 0),
          "the workspace must be given, aligned to 256 bytes");
    check_device("hidden", args.hidden);
    check_device("output", args.output);
    sm90::MoeCall call = sm90_call(moe_.spec(), args);
    call.num_tokens = queue.num_tokens;
    call.pdl = queue.pdl;
    moe_.run(call, queue.stream);
  }
  void refit(const weights::ExpertWeights& w, void* stream) override {
    check_weights(moe_.spec(), w);
    moe_.set_weights(w, stream);
  }

 private:
  sm90::FusedMoe moe_;
};

class Gemm : public DeviceGemm {
 public:
  Gemm(const GemmSpec& s, const weights::QuantTensor& w, float input_scale, const Tensor& bias, void* stream)
      : spec_(s), gemm_({s.rows, s.cols, s.weights, s.inputs, s.dtype}) {
    refit(w, input_scale, bias, stream);
  }
  const GemmSpec& spec() const override { return spec_; }
  int64_t workspace_bytes(int64_t tokens) const override {
    check(tokens >= 0, "tokens is {}; it must not be negative", tokens);
    return gemm_.workspace_bytes(tokens);
  }
  void run(const GemmArgs& a, const DeviceQueue& queue) const override {
    check(a.tokens == 0 || reinterpret_cast<uintptr_t>(a.workspace) % 256 == 0,
          "the workspace is not aligned to 256 bytes");
    check_device("x", a.x);
    check_device("codes", a.codes);
    check_device("y", a.y);
    sm90::DenseCall call;
    call.tokens = a.tokens;
    call.num_tokens = queue.num_tokens;
    call.x = a.x;
    call.codes = a.codes;
    call.scales = a.scales;
    call.layout = a.layout;
    call.row_scales = a.row_scales;
    call.y = a.y;
    call.workspace = a.workspace;
    call.pdl = queue.pdl;
    gemm_.run(call, queue.stream);
  }
  void refit(const weights::QuantTensor& w, float input_scale, const Tensor& bias, void* stream) override {
    check(!format::is_static(spec_.inputs) || input_scale > 0, "the input scale is {}; inputs {} need a positive one",
          input_scale, name_of(format::kInputFormats, spec_.inputs));
    gemm_.set_weights(w, input_scale, bias, stream);
  }

 private:
  GemmSpec spec_;
  sm90::DenseGemm gemm_;
};

void check_ready() {
  if (const std::string problem = sm90::device_problem(); !problem.empty()) fail(ErrorCode::unsupported, "{}", problem);
}

}  // namespace

std::unique_ptr<DeviceMoe> make_device_moe(const MoeSpec& spec, const weights::ExpertWeights& w, int device,
                                           void* stream) {
  validate(spec);
  if (const Support s = sm90::supports_spec(spec); !s) fail(ErrorCode::unsupported, "sm90: {}", s.reason);
  const sm90::DeviceGuard guard(device);
  check_ready();
  return std::make_unique<Moe>(spec, w, stream);
}

std::unique_ptr<DeviceGemm> make_device_gemm(const GemmSpec& spec, const weights::QuantTensor& w, float input_scale,
                                             const Tensor& bias, int device, void* stream) {
  if (const Support s = sm90::supports_dense({spec.rows, spec.cols, spec.weights, spec.inputs, spec.dtype}); !s)
    fail(ErrorCode::unsupported, "sm90: {}", s.reason);
  const sm90::DeviceGuard guard(device);
  check_ready();
  return std::make_unique<Gemm>(spec, w, input_scale, bias, stream);
}

void device_quantize(const QuantizeCall& c, const DeviceQueue& queue) {
  sm90::QuantizeArgs a{};
  a.coding = parse_name(sm90::kCodings, "coding", c.coding);
  check(c.dtype == DType::bf16 || c.dtype == DType::f32, "x is {}; accepted: bfloat16, float32", to_string(c.dtype));
  check(c.rows >= 0 && c.cols >= 0 && c.cols < (int64_t{1} << 30), "x is [{}, {}]", c.rows, c.cols);
  if (c.rows == 0 || c.cols == 0) return;
  check(c.x != nullptr && c.codes != nullptr, "x or codes are null");
  check_device("x", c.x);
  check_device("codes", c.codes);
  const bool calibrated = a.coding == sm90::Coding::fp8_static || a.coding == sm90::Coding::nvfp4;
  const bool rows = a.coding == sm90::Coding::fp8_token || a.coding == sm90::Coding::nvfp4_token;
  check(calibrated == (c.input_scale != nullptr), "{} {} an input_scale", c.coding, calibrated ? "needs" : "takes no");
  check(rows == (c.row_scales != nullptr), "{} {} row_scales", c.coding, rows ? "needs" : "takes no");
  const bool blocks = sm90::coding_group(a.coding) > 0;
  check(blocks == (c.scales != nullptr), "{} {} scales", c.coding, blocks ? "needs" : "takes no");
  const bool floats = a.coding == sm90::Coding::fp8_group;
  const bool transposed = c.layout == format::ScaleLayout::transposed;
  check(!blocks || c.layout == format::ScaleLayout::linear || transposed == floats,
        "scales of {} do not come in layout {}", c.coding, name_of(format::kScaleLayouts, c.layout));
  a.x = c.x;
  a.x_f32 = c.dtype == DType::f32;
  a.rows = c.rows;
  a.cols = static_cast<int>(c.cols);
  a.input_scale = c.input_scale;
  a.codes = c.codes;
  a.scales = c.scales;
  a.layout = c.layout;
  a.row_scales = c.row_scales;
  sm90::launch_quantize(a, queue.stream, queue.pdl);
}

}  // namespace sluice::moe

#else

namespace sluice::moe {

namespace {
[[noreturn]] void no_cuda() { fail(ErrorCode::unsupported, "this library was built without CUDA"); }
}  // namespace

std::unique_ptr<DeviceMoe> make_device_moe(const MoeSpec&, const weights::ExpertWeights&, int, void*) { no_cuda(); }
std::unique_ptr<DeviceGemm> make_device_gemm(const GemmSpec&, const weights::QuantTensor&, float, const Tensor&, int,
                                             void*) {
  no_cuda();
}
void device_quantize(const QuantizeCall&, const DeviceQueue&) { no_cuda(); }

}  // namespace sluice::moe

#endif
