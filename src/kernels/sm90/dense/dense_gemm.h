// SPDX-License-Identifier: Apache-2.0
// y = x W^T with quantised weights [N, K] and input rows: the grouped GEMM with one group. For shared experts and
// latent projections, in every pair of formats that the fused MoE runs, with the same rounding points.
#pragma once

#include <vector>

#include "kernels/sm90/dense/dense_call.h"
#include "kernels/sm90/dense/plan.h"
#include "kernels/sm90/device.h"
#include "kernels/sm90/quantize/tensor.h"
#include "kernels/sm90/repack/matrix.h"
#include "weights/quant_tensor.h"

namespace sluice::sm90 {

struct BatchRowsArgs;
struct RoundRowsArgs;

class DenseGemm {
 public:
  // On the current device, in the caller's memory of dense_memory(spec).bytes or in its own, which is then the only
  // allocation; `multiprocessors` 0 asks the device.
  explicit DenseGemm(const DenseSpec& spec, int multiprocessors = 0, const CallerMemory& memory = {});
  // Stream-ordered and in place, as FusedMoe::set_weights. w: one expert. bias: float32 [N] in host memory, or empty.
  void set_weights(const weights::QuantTensor& w, float input_scale, const Tensor& bias, Stream stream);
  const DenseSpec& spec() const { return spec_; }
  RepackedMatrix& matrix() { return matrix_; }  // for callers that fill it themselves (benchmarks)
  const RepackedMatrix& matrix() const { return matrix_; }
  int64_t weight_bytes() const { return matrix_.bytes(); }
  // What any call of up to `tokens` tokens needs; with `force` what a call of exactly `tokens` does.
  int64_t workspace_bytes(int64_t tokens) const;
  int64_t workspace_bytes(int64_t tokens, const GemmForce& force) const;
  GemmChoice choice(int64_t tokens, const GemmForce& force = {}) const;
  // Parts of K in which the kernel for few rows runs the call; 0: another kernel does.
  int few_rows_parts(const DenseCall& call) const;
  // How the kernel for a batch of rows runs the call; no tile: another kernel does.
  BatchRowsChoice batch_rows_choice(const DenseCall& call) const;
  // Whether y may be a part of wider rows, and aligned as its type is.
  bool writes_apart(const DenseCall& call) const;
  bool reads_in_place(const DenseCall& call) const;
  void run(const DenseCall& call, Stream stream) const;

 private:
  void run_few_rows(const DenseCall& call, int parts, Stream stream) const;
  void run_batch_rows(const DenseCall& call, const BatchRowsChoice& choice, Stream stream) const;
  RoundRowsArgs round_rows(const DenseCall& call, Stream stream) const;
  // Sets the rows of x and their scales, which are rounded to the workspace or read where they are.
  void set_batch_rows(BatchRowsArgs& args, const DenseCall& call, int tile, Stream stream) const;

  DenseSpec spec_;
  int device_, multiprocessors_;
  WorkspaceBound workspace_;
  DenseMemory memory_at_;
  DeviceBuffer memory_;  // what follows are parts of it
  RepackedMatrix matrix_;
  DeviceBuffer bias_, input_scales_;  // InputScale: the calibrated one, and ones
  // The narrowest tile: a choice changes only where a tile is full.
  static constexpr int64_t kBatchStep = kChainTiles[0];
  // For up to kBatchStep, 2 kBatchStep, ... rows; empty: the kernel takes no call.
  std::vector<BatchRowsChoice> batch_rows_;
  BatchRoom room_;
  int k_parts_ = 0;  // deterministic: parts of K of every call that is not forced
  bool filled_ = false;
};

}  // namespace sluice::sm90
