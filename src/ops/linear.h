// SPDX-License-Identifier: Apache-2.0
// y = x W^T (+ bias): a dense matrix in any number format, packed for this CPU. Projections, router gate, lm_head.
#pragma once

#include <optional>

#include "kernels/cpu/gemm_choice.h"
#include "ops/matrix.h"
#include "weights/panel.h"

namespace sluice::ops {

struct LinearOptions {
  format::InputFormat inputs = format::InputFormat::plain;  // what x is rounded to first
  DType dtype = DType::bf16;                                // the run's type: f32 multiplies in float32 throughout
  float input_scale = 1.0f;                                 // static input formats
  std::optional<kernels::cpu::Isa> isa;                     // nothing: the best that this machine runs
};

// A row of y depends on its row of x alone, bit for bit, whatever else is in the batch.
class Linear {
 public:
  Linear() = default;
  // w: a stack of one, [1, N, K]. bias: float32 or bfloat16 [N], or empty.
  Linear(Context& ctx, const weights::QuantTensor& w, const Tensor& bias = {}, const LinearOptions& options = {});

  int64_t inputs() const { return weights_.cols(); }   // K
  int64_t outputs() const { return weights_.rows(); }  // N
  int64_t weight_bytes() const { return weights_.bytes(); }

  // x [T, K] in bfloat16 or float32; y [T, N] in bfloat16 or float32, rounded once from float32.
  void run(Context& ctx, ConstMatrix x, Matrix y) const;

 private:
  LinearOptions options_;
  kernels::cpu::GemmChoice choice_;
  weights::PanelStack weights_;
  Tensor bias_;  // f32
};

}  // namespace sluice::ops
