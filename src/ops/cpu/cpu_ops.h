// SPDX-License-Identifier: Apache-2.0
// Ops on the CPU: plain loops over float32 pieces of rows, shared out on the context's pool. Each file of this folder
// holds the functions of its name.
#pragma once

#include <vector>

#include "kernels/cpu/isa.h"
#include "ops/ops.h"

namespace sluice::ops::cpu {

class CpuOps : public Ops {
 public:
  explicit CpuOps(Context& ctx, kernels::cpu::Isa isa = kernels::cpu::best_isa());

  void embed(const int32_t* ids, const Tensor& table, Matrix y) override;
  void gather_rows(ConstMatrix x, const int32_t* rows, Matrix y) override;
  void copy(ConstMatrix x, Matrix y) override;
  void add(Matrix x, ConstMatrix y) override;
  void silu_multiply(Matrix gate, ConstMatrix up) override;
  void relu_squared(Matrix x) override;
  float amax(ConstMatrix x) override;
  void random_logits(const int32_t* positions, int64_t rows, Matrix logits) override;

  void rms_norm(ConstMatrix x, const RmsNorm& norm, Matrix y, const RoundedRows& rounded) override;
  void add_rms_norm(Matrix x, const Change& change, const RmsNorm& norm, Matrix y, const RoundedRows& rounded) override;
  void gated_group_rms_norm(ConstMatrix x, ConstMatrix gate, int64_t groups, const RmsNorm& norm, Matrix y) override;

  void rope_angles(const RopeFrequencies& f, const int32_t* positions, int64_t rows, DType dtype, float* cosine,
                   float* sine) override;
  void norm_rope_store(const Batch& batch, const QkvLayout& layout, const RopeAngles& angles, Matrix qkv,
                       const Pages& keys, const Pages& values) override;
  void attention(const Batch& batch, ConstMatrix q, const Pages& keys, const Pages& values, int64_t value_width,
                 const AttentionOptions& options, Matrix out) override;

  void mla_norm_rope_store(const Batch& batch, const MlaShape& shape, RopeLayout layout, const RopeAngles& angles,
                           const RmsNorm& norm, Matrix q, Matrix latent, const Pages& keys) override;
  DType absorbed_type(const MlaShape&, DType) const override { return DType::f32; }
  void mla_absorb(const MlaShape& shape, const Tensor& kv_b, ConstMatrix q, Matrix out) override;
  void mla_expand(const MlaShape& shape, const Tensor& kv_b, ConstMatrix mixed, Matrix out) override;

  void causal_conv(const Batch& batch, const MambaShape& shape, ConstMatrix xbc, const Tensor& weight,
                   const Tensor& bias, const States& states, Matrix out) override;
  DType conv_type(DType) const override { return DType::f32; }
  void state_scan(const Batch& batch, const MambaShape& shape, ConstMatrix xbc, ConstMatrix dt,
                  const StateScanOptions& options, const States& states, Matrix y) override;
  void copy_states(const States& states, std::span<const std::pair<int32_t, int32_t>> places) override;

  void sample(Matrix logits, const sampling::SampleBatch& batch, std::span<sampling::Sampled> out) override;
  void begin_sample(Matrix logits, const sampling::SampleBatch& batch) override;
  void end_sample(std::span<sampling::Sampled> out) override;
  void take_sampled(int32_t* ids, int64_t count) override;
  std::shared_ptr<Event> move_batch(const BatchMove& move) override;
  void log_likelihoods(ConstMatrix logits, std::span<const int32_t> ids, std::span<double> out) override;

 private:
  // In scratch memory, of as many rows and columns as x has.
  Matrix sum_of(const ExpertResults& experts, Matrix x);
  std::vector<sampling::ChooseScratch> scratch_;  // per thread of the pool
  std::vector<sampling::Sampled> begun_[2];       // of batches that were begun, by turns
  int64_t batches_begun_ = 0, batches_ended_ = 0;
  kernels::cpu::Isa isa_;  // of attention's products
};

}  // namespace sluice::ops::cpu
