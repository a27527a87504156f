// SPDX-License-Identifier: Apache-2.0
// Ops on a Hopper GPU: each function launches kernels of kernels/sm90 on the context's queue and returns. Nothing is
// allocated once the largest batch has been seen, so that steps can be recorded.
#pragma once

#include "ops/ops.h"

namespace sluice::sm90 {
struct AttentionArgs;
struct AttentionBounds;
}  // namespace sluice::sm90

namespace sluice::ops::sm90 {

class Sm90Ops : public Ops {
 public:
  explicit Sm90Ops(Context& ctx);

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
  void add_rms_norm_multiply(Matrix x, const Change& change, const RmsNorm& norm, Matrix y, const RoundedRows& rounded,
                             const NormProduct& product) override;
  void gated_group_rms_norm(ConstMatrix x, ConstMatrix gate, int64_t groups, const RmsNorm& norm, Matrix y) override;

  // At most 256 pairs; heads of at most 1024 values in the stores.
  void rope_angles(const RopeFrequencies& f, const int32_t* positions, int64_t rows, DType dtype, float* cosine,
                   float* sine) override;
  void norm_rope_store(const Batch& batch, const QkvLayout& layout, const RopeAngles& angles, Matrix qkv,
                       const Pages& keys, const Pages& values) override;
  void attention(const Batch& batch, ConstMatrix q, const Pages& keys, const Pages& values, int64_t value_width,
                 const AttentionOptions& options, Matrix out) override;
  void norm_rope_attention(const Batch& batch, const QkvLayout& layout, const RopeAngles& angles, Matrix qkv,
                           const Pages& keys, const Pages& values, const AttentionOptions& options,
                           Matrix out) override;

  void mla_norm_rope_store(const Batch& batch, const MlaShape& shape, RopeLayout layout, const RopeAngles& angles,
                           const RmsNorm& norm, Matrix q, Matrix latent, const Pages& keys) override;
  DType absorbed_type(const MlaShape& shape, DType dtype) const override;
  void mla_absorb(const MlaShape& shape, const Tensor& kv_b, ConstMatrix q, Matrix out) override;
  void mla_expand(const MlaShape& shape, const Tensor& kv_b, ConstMatrix mixed, Matrix out) override;
  void mla_attention(const Batch& batch, const MlaShape& shape, const Tensor& kv_b, ConstMatrix q, const Pages& keys,
                     const AttentionOptions& options, Matrix out) override;

  void causal_conv(const Batch& batch, const MambaShape& shape, ConstMatrix xbc, const Tensor& weight,
                   const Tensor& bias, const States& states, Matrix out) override;
  DType conv_type(DType dtype) const override { return dtype; }
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
  ConstMatrix sum_of(const ExpertResults& experts, Matrix x);
  // What is planned, with its workspace.
  void launch_planned(sluice::sm90::AttentionArgs& args);
  // Attends the sequences of many new rows, and tells `args` to leave them alone.
  void prefill(const Batch& batch, sluice::sm90::AttentionArgs& args);
  void latent_attention(const sluice::sm90::AttentionBounds& bounds, bool row_invariant,
                        const sluice::sm90::AttentionArgs& args);
  void* stream() const { return ctx().queue.stream(); }
  // Page-locked host memory that grows.
  struct Staging {
    std::shared_ptr<void> memory;
    int64_t size = 0;
    void* at_least(Device& device, int64_t bytes);
  };
  // A batch that was begun and whose results have not been taken.
  struct Sampling {
    Staging staging;                // what rows ask for, then what was chosen, which the GPU writes in place
    std::vector<int32_t> top_rows;  // of each row: how many likely tokens are wanted, -1: no log probabilities
    int64_t outcomes_at = 0, top_at = 0;
    int max_top = 0;
    std::shared_ptr<Event> done;  // null: not recorded yet
  };
  void record_last_batch();
  void send(void* to, const void* from, int64_t bytes);

  int index_, multiprocessors_;
  Staging waited_;         // of operations that wait for their result
  Sampling samplings_[2];  // by turns
  int64_t batches_begun_ = 0, batches_ended_ = 0;
  // What the last batch chose: SampleOutcome by row. It stays until the next batch.
  Tensor results_;
  int64_t result_rows_ = 0;
};

}  // namespace sluice::ops::sm90
