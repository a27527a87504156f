// SPDX-License-Identifier: Apache-2.0
// y = x W^T with quantised weights [N, K] and input rows: the grouped GEMM with one group. For shared experts and
// latent projections, in every pair of formats that the fused MoE runs, with the same rounding points.
#pragma once

#include "base/support.h"
#include "kernels/sm90/device.h"
#include "kernels/sm90/grouped_gemm/heuristic.h"
#include "kernels/sm90/prepare/matrix.h"
#include "kernels/sm90/quantize/tensor.h"
#include "tensor/dtype.h"
#include "weights/quant_tensor.h"

namespace sluice::sm90 {

struct DenseSpec {
  int64_t rows = 0, cols = 0;  // N, K
  format::Format weights = format::Format::bf16;
  format::InputFormat inputs = format::InputFormat::plain;
  DType dtype = DType::bf16;  // of x and y
};
// What these kernels cannot do, in a sentence; says nothing about the device.
Support supports_dense(const DenseSpec& spec);

struct DenseCall {
  int64_t tokens = 0;                   // the largest number, if num_tokens is given
  const int32_t* num_tokens = nullptr;  // device
  const void* x = nullptr;              // dtype [T, K], rounded to the spec's inputs by the call; or
  const uint8_t* codes = nullptr;       // x rounded already, as QuantizeArgs leaves it:
  const void* scales = nullptr;
  format::ScaleLayout layout = format::ScaleLayout::linear;
  const float* row_scales = nullptr;  // [T] decode factors; null with static inputs: the calibrated one
  void* y = nullptr;                  // dtype [T, N]
  void* workspace = nullptr;          // 256-byte aligned
  bool pdl = true;
  GemmForce force;
};

class DenseGemm {
 public:
  // Allocates on the current device.
  explicit DenseGemm(const DenseSpec& spec);
  // Stream-ordered and in place, as FusedMoe::set_weights. w: one expert. bias: float32 [N] in host memory, or empty.
  void set_weights(const weights::QuantTensor& w, float input_scale, const Tensor& bias, Stream stream);
  const DenseSpec& spec() const { return spec_; }
  PreparedMatrix& matrix() { return matrix_; }  // for callers that fill it themselves (benchmarks)
  int64_t weight_bytes() const { return matrix_.bytes(); }
  int64_t workspace_bytes(int64_t tokens, const GemmForce& force = {}) const;
  GemmChoice choice(int64_t tokens, const GemmForce& force = {}) const;
  void run(const DenseCall& call, Stream stream) const;

 private:
  struct Plan;
  Plan plan(int64_t tokens, const GemmForce& force, void* workspace, bool row_scales) const;

  DenseSpec spec_;
  int device_, multiprocessors_;
  PreparedMatrix matrix_;
  DeviceBuffer bias_, input_scales_;  // InputScale: the calibrated one, and ones
  bool filled_ = false;
};

}  // namespace sluice::sm90
