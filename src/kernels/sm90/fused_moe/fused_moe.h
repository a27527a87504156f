// SPDX-License-Identifier: Apache-2.0
// The fused MoE of one layer on one device: prepared weights and the chain of launches. Stream-ordered; run() allocates
// nothing, reads nothing on the host and may be captured in a graph.
#pragma once

#include "kernels/sm90/device.h"
#include "kernels/sm90/fused_moe/problem.h"
#include "kernels/sm90/grouped_gemm/args.h"
#include "kernels/sm90/prepare/matrix.h"
#include "spec/moe_spec.h"
#include "weights/expert_weights.h"

namespace sluice::sm90 {

// One call, device memory. Shapes and types as moe::MoeArgs.
struct MoeCall {
  int64_t tokens = 0;                   // the largest number, if num_tokens is given
  const int32_t* num_tokens = nullptr;  // device
  const void* hidden = nullptr;
  const void* logits = nullptr;
  bool logits_bf16 = true;
  const void* bias = nullptr;
  bool bias_bf16 = false;
  const int32_t* topk_ids = nullptr;
  const void* topk_weights = nullptr;  // null: packed
  bool topk_weights_bf16 = false;
  void* output = nullptr;
  void* workspace = nullptr;  // 256-byte aligned
  int32_t* chosen_ids = nullptr;
  float* chosen_weights = nullptr;
  bool pdl = true;
  GemmForce force;  // of tile and splits, for tests and benchmarks
};

struct RouteArgs;
struct RowsArgs;

class FusedMoe {
 public:
  // Allocates on the current device; `multiprocessors` 0 asks it. Weights follow by set_weights.
  explicit FusedMoe(const MoeSpec& spec, int multiprocessors = 0);

  // Weights to the device layout, at addresses that never change, in stream order. Codes, scales and global scales may
  // be in host memory (staged in parts) or in this device's (read in place, 16-byte aligned, until the stream has
  // passed); the small tensors are in host memory. Graphs captured before run with the new weights; what is optional
  // must be given again or stay away.
  void set_weights(const weights::ExpertWeights& w, Stream stream);

  const MoeSpec& spec() const { return spec_; }
  int device() const { return device_; }
  int64_t weight_bytes() const;
  int64_t workspace_bytes(int64_t tokens, const GemmForce& force = {}) const;
  GemmChoice choice(int64_t tokens, const GemmForce& force = {}) const;
  void run(const MoeCall& call, Stream stream) const;

  // Prepared memory, for callers that fill it themselves (benchmarks).
  using Matrix = PreparedMatrix;
  Matrix& first() { return first_; }
  Matrix& second() { return second_; }

 private:
  struct Plan;
  Plan plan(int64_t tokens, const GemmForce& force, void* workspace) const;
  int units_of(int g, const Instance& tile) const;
  RouteArgs route_args(const MoeCall& call, const Plan& p) const;
  RowsArgs row_args(const MoeCall& call, const Plan& p, const RouteArgs& route) const;
  GroupedGemmArgs gemm_args(const MoeCall& call, const Plan& p) const;
  void multiply(const MoeCall& call, const Plan& p, GroupedGemmArgs gemm, const RowsArgs& rows, Stream stream) const;
  void round_between(const Plan& p, const Gemm& first, RowsArgs rows, Stream stream, bool pdl) const;

  MoeSpec spec_;
  int device_, multiprocessors_;
  Matrix first_, second_;
  DeviceBuffer bias_up_, bias_gate_, bias_down_, alpha_, beta_, limit_;
  DeviceBuffer input_scales_;  // InputScale of each GEMM
  InputScale sent_scales_[2];  // what it holds
  DeviceBuffer rehearsal_;     // rehearsal_bytes()
  bool filled_ = false;
};

}  // namespace sluice::sm90
