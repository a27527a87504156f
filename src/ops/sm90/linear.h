// SPDX-License-Identifier: Apache-2.0
// Matrix products on Hopper's tensor cores, and in float32 without them.
#pragma once

#include <vector>

#include "kernels/sm90/dense/dense_gemm.h"
#include "ops/linear.h"

namespace sluice::ops::sm90 {

class Sm90Linear : public Linear {
 public:
  // Throws unsupported, with the reason, for formats and types that the tensor cores do not multiply.
  Sm90Linear(Context& ctx, std::span<const weights::QuantTensor> parts, const Tensor& bias,
             const LinearOptions& options);

  int64_t inputs() const override { return inputs_; }
  int64_t outputs() const override { return outputs_; }
  int64_t weight_bytes() const override;
  int64_t workspace_bytes(int64_t rows) const override;
  Rounding rounding(int64_t rows) const override;
  void run(Context& ctx, const LinearInput& x, Matrix y, void* workspace, int64_t workspace_size) const override;
  // The repacked weights of one bfloat16 matrix without bias, whose sums may take any order; else null.
  const uint8_t* plain_weights() const;

 private:
  struct Memory;
  // The arrays of a call in memory at `base`; null: none. Returns their bytes.
  int64_t lay_out(void* base, int64_t rows, Memory* out) const;
  // Whether the kernels read rows where they are.
  bool readable(ConstMatrix x) const;
  // Whether the kernel for few rows takes `rows` rows of values that are rounded.
  bool takes_few(int64_t rows) const;
  // Whether the kernel for a batch of rows takes `rows` rows of values, which it rounds, but not their codes.
  bool batches_values_alone(int64_t rows) const;
  // All but y.
  sluice::sm90::DenseCall call_of(const LinearInput& x, DType y, const Memory& memory) const;
  void run_rows(Context& ctx, const LinearInput& x, Matrix y, const Memory& memory) const;

  LinearOptions options_;
  std::vector<sluice::sm90::DenseGemm> parts_;  // one, unless their scales could not be put into one matrix
  int64_t inputs_ = 0, outputs_ = 0, widest_ = 0;
  bool biased_ = false;
  int64_t columns_ = 0;  // the kernels' K: inputs_, padded with zeros to whole groups of the format
};

// Weights in float32, multiplied in float32.
class Sm90FloatLinear : public Linear {
 public:
  Sm90FloatLinear(Context& ctx, const Tensor& weight, const Tensor& bias);

  int64_t inputs() const override { return weight_.dim(1); }
  int64_t outputs() const override { return weight_.dim(0); }
  int64_t weight_bytes() const override { return weight_.bytes(); }
  int64_t workspace_bytes(int64_t) const override { return 0; }
  Rounding rounding(int64_t) const override { return {}; }
  void run(Context& ctx, const LinearInput& x, Matrix y, void* workspace, int64_t workspace_size) const override;

 private:
  Tensor weight_, bias_;  // on the device
};

// The one of the two that options ask for: plain inputs of a float32 run are not rounded for tensor cores.
std::unique_ptr<Linear> make_sm90_linear(Context& ctx, std::span<const weights::QuantTensor> parts, const Tensor& bias,
                                         const LinearOptions& options);

}  // namespace sluice::ops::sm90
