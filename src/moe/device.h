// SPDX-License-Identifier: Apache-2.0
// The operation on device memory: stream-ordered calls on raw pointers, for engines that live on the GPU. A call
// allocates nothing, waits for nothing and reads nothing on the host, so it may be captured in a CUDA graph; tokens is
// then the captured maximum and num_tokens the real count. Objects belong to the device they were made for; several
// streams may call one object at the same time, each with a workspace of its own. No CUDA header is needed here; a
// library without CUDA throws `unsupported`.
#pragma once

#include <memory>

#include "format/scale_layout.h"
#include "moe/backend.h"
#include "weights/quant_tensor.h"

namespace sluice::moe {

struct DeviceQueue {
  void* stream = nullptr;               // cudaStream_t
  const int32_t* num_tokens = nullptr;  // in device memory, at most MoeArgs::tokens; null: tokens
  bool pdl = true;                      // programmatic dependent launch between the kernels of a call
};

class DeviceMoe {
 public:
  virtual ~DeviceMoe() = default;
  virtual const MoeSpec& spec() const = 0;
  virtual int64_t weight_bytes() const = 0;
  // For any call of up to `tokens` tokens as the captured maximum.
  virtual int64_t workspace_bytes(int64_t tokens) const = 0;
  // args: device pointers; the workspace 256-byte aligned; no trace.
  virtual void run(const MoeArgs& args, const DeviceQueue& queue) const = 0;
  // Other weights of the same spec at the same addresses, in stream order: graphs that were captured before see them.
  // Codes, block scales and global scales may be in device memory (16-byte aligned), the small tensors in host memory.
  virtual void refit(const weights::ExpertWeights& w, void* stream) = 0;
};

std::unique_ptr<DeviceMoe> make_device_moe(const MoeSpec& spec, const weights::ExpertWeights& w, int device,
                                           void* stream);

// y [T, N] = x [T, K] W^T, W in a weight format, x rounded to `inputs` as the MoE's rows are.
struct GemmSpec {
  int64_t rows = 0, cols = 0;  // N, K
  format::Format weights = format::Format::bf16;
  format::InputFormat inputs = format::InputFormat::plain;
  DType dtype = DType::bf16;  // of x and y
};
struct GemmArgs {
  int64_t tokens = 0;
  const void* x = nullptr;         // [T, K], rounded by the call; or rounded already:
  const uint8_t* codes = nullptr;  // e4m3 [T, K] or two e2m1 a byte [T, ceil(K/2)]
  const void* scales = nullptr;    // of blocks, in `layout`
  format::ScaleLayout layout = format::ScaleLayout::linear;
  const float* row_scales = nullptr;  // [T]; null with static inputs: the calibrated one
  void* y = nullptr;
  void* workspace = nullptr;
};
class DeviceGemm {
 public:
  virtual ~DeviceGemm() = default;
  virtual const GemmSpec& spec() const = 0;
  virtual int64_t workspace_bytes(int64_t tokens) const = 0;
  virtual void run(const GemmArgs& args, const DeviceQueue& queue) const = 0;
  virtual void refit(const weights::QuantTensor& w, float input_scale, const Tensor& bias, void* stream) = 0;
};
// w: one expert; input_scale: of static inputs; bias: float32 [N] in host memory, or empty.
std::unique_ptr<DeviceGemm> make_device_gemm(const GemmSpec& spec, const weights::QuantTensor& w, float input_scale,
                                             const Tensor& bias, int device, void* stream);

// Rows [T, K] to codes and scales, bit for bit format::quantize_rows. coding: fp8_static, fp8_token, fp8_group, mxfp8,
// nvfp4, nvfp4_token, mxfp4. Current device.
struct QuantizeCall {
  std::string_view coding;
  const void* x = nullptr;
  DType dtype = DType::bf16;
  int64_t rows = 0, cols = 0;
  const float* input_scale = nullptr;  // device [1]: fp8_static, nvfp4
  uint8_t* codes = nullptr;
  void* scales = nullptr;  // format::scale_elements() bytes, for fp8_group floats
  format::ScaleLayout layout = format::ScaleLayout::linear;
  float* row_scales = nullptr;  // [T]: fp8_token, nvfp4_token
};
void device_quantize(const QuantizeCall& call, const DeviceQueue& queue);

}  // namespace sluice::moe
