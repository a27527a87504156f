// SPDX-License-Identifier: Apache-2.0
// Matrix products with packed weights.
#pragma once

#include <optional>
#include <vector>

#include "kernels/cpu/cpu_kernel.h"
#include "kernels/cpu/packed_weights.h"
#include "ops/linear.h"

namespace sluice::ops::cpu {

// Memory of the caller for packed weights, 64-byte aligned. It outlives the layer and keeps its address through refits.
// No data: the layer allocates.
struct WeightMemory {
  void* data = nullptr;
  int64_t size = 0;  // bytes
};

class CpuLinear : public Linear {
 public:
  // isa: nothing: the best that this machine runs. memory: of prepared_bytes() at least for one matrix.
  CpuLinear(Context& ctx, std::span<const weights::QuantTensor> parts, const Tensor& bias, const LinearOptions& options,
            std::optional<kernels::cpu::Isa> isa = {}, const WeightMemory& memory = {});
  // Bytes of a packed matrix [n, k]. Throws unsupported for formats that the best kernels of this machine do not run.
  static int64_t prepared_bytes(format::Format weights, format::InputFormat inputs, int64_t n, int64_t k);
  // Packs another matrix of the same format and shape into the same memory, for a layer of one matrix. bias: float32 or
  // bfloat16 [N], given or absent as before. Throws invalid_argument, and then has changed nothing. Not during a run.
  void refit(Context& ctx, const weights::QuantTensor& w, const Tensor& bias, float input_scale);

  int64_t inputs() const override { return parts_.front().k(); }
  int64_t outputs() const override { return outputs_; }
  int64_t weight_bytes() const override;
  int64_t workspace_bytes(int64_t rows) const override;
  Rounding rounding(int64_t) const override { return {}; }
  void run(Context& ctx, const LinearInput& x, Matrix y, void* workspace, int64_t workspace_size) const override;

 private:
  struct Memory;
  // The arrays of a call in memory at `base`; null: none. Returns their bytes.
  int64_t lay_out(void* base, int64_t rows, Memory* out) const;
  void multiply(Context& ctx, const Memory& memory, int64_t rows, const kernels::cpu::PackedWeights& part,
                int64_t first_col, Matrix y) const;

  LinearOptions options_;
  kernels::cpu::CpuKernel choice_;
  std::vector<kernels::cpu::PackedWeights> parts_;  // one, unless their scales could not be put into one stack
  int64_t outputs_ = 0;
  int threads_ = 1;
  Tensor bias_;  // f32
};

// Weights in float32, multiplied in float32.
class CpuFloatLinear : public Linear {
 public:
  CpuFloatLinear(Context& ctx, Tensor weight, Tensor bias);

  int64_t inputs() const override { return weight_.dim(1); }
  int64_t outputs() const override { return weight_.dim(0); }
  int64_t weight_bytes() const override { return weight_.bytes(); }
  int64_t workspace_bytes(int64_t rows) const override;
  Rounding rounding(int64_t) const override { return {}; }
  void run(Context& ctx, const LinearInput& x, Matrix y, void* workspace, int64_t workspace_size) const override;

 private:
  Tensor weight_, bias_;
  int threads_;
};

}  // namespace sluice::ops::cpu
