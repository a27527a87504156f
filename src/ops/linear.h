// SPDX-License-Identifier: Apache-2.0
// y = x W^T (+ bias): a dense matrix in any number format on any device. Projections, router, language-model head.
#pragma once

#include <memory>
#include <span>

#include "device/context.h"
#include "ops/rounded_rows.h"
#include "weights/quant_tensor.h"

namespace sluice::ops {

struct LinearOptions {
  format::InputFormat inputs = format::InputFormat::plain;  // what x is rounded to first; plain: to dtype
  DType dtype = DType::bf16;                                // the run's type: f32 multiplies in float32 throughout
  float input_scale = 1.0f;                                 // decode factor of static input formats
  bool deterministic = false;  // a row of y depends on its row of x alone; always so on the CPU
  bool fp8_f32_sums = true;    // FP8 products summed in float32 also where tensor cores keep 14 bits; always on the CPU
};

// What a product reads: rows [T, K] in bfloat16 or float32, and their codes where a norm has made them. Codes of
// another rounding than the product's are not read.
struct LinearInput {
  ConstMatrix rows;
  RoundedRows rounded;
  // What the operation ahead reads, at most. Where that takes long, a GPU lets the product's blocks begin beside it, to
  // fetch their weights. The bits are the same.
  int64_t bytes_ahead = 0;
  LinearInput(ConstMatrix x, const RoundedRows& codes = {}) : rows(x), rounded(codes) {}
  LinearInput(Matrix x) : rows(x) {}
};

// Weights in the layout that a device's kernels read. Immutable; one caller at a time.
class Linear {
 public:
  virtual ~Linear() = default;
  virtual int64_t inputs() const = 0;   // K
  virtual int64_t outputs() const = 0;  // N
  virtual int64_t weight_bytes() const = 0;
  // Enough for every call of at most `rows` rows: it never falls as `rows` grows.
  virtual int64_t workspace_bytes(int64_t rows) const = 0;
  // How a call of `rows` rows takes rows that are rounded already; plain: it reads their values and rounds them itself.
  // Either way gives the same bits.
  virtual Rounding rounding(int64_t rows) const = 0;
  // y [T, N] in bfloat16 or float32, rounded once from float32. The workspace is of the device,
  // Device::kAlignment-byte aligned. On the CPU, ctx has at most as many threads as the one that packed the weights
  // had. Throws invalid_argument for other shapes, a smaller workspace or more threads.
  virtual void run(Context& ctx, const LinearInput& x, Matrix y, void* workspace, int64_t workspace_size) const = 0;
};

// Packs weights for ctx.device(). `parts`: stacks of one, [1, Ni, K], in one number format, whose rows follow each
// other in y: one product whose input rows are rounded once (q, k and v; gate and up). bias: float32 or bfloat16
// [sum of Ni] on the host, as the parts are, or empty. On a GPU codes and block scales of the parts may be in its
// memory, written by work of ctx.queue. Throws unsupported, with the device's reason, for a format that it does not
// run.
std::unique_ptr<Linear> make_linear(Context& ctx, std::span<const weights::QuantTensor> parts, const Tensor& bias = {},
                                    const LinearOptions& options = {});
// Weights that a checkpoint stores in float32 (some routers), [N, K] on the host, multiplied as they are. bias: float32
// or bfloat16 [N] on the host, or empty.
std::unique_ptr<Linear> make_float_linear(Context& ctx, const Tensor& weight, const Tensor& bias = {});

}  // namespace sluice::ops
