// SPDX-License-Identifier: Apache-2.0
// The fused MoE of one layer on one device: prepared weights and the chain of launches. Stream-ordered; run() allocates
// nothing, reads nothing on the host and may be captured in a graph.
#pragma once

#include <string>

#include "base/support.h"
#include "kernels/sm90/device.h"
#include "kernels/sm90/grouped_gemm/heuristic.h"
#include "kernels/sm90/prepare/prepare.h"
#include "spec/moe_spec.h"
#include "weights/expert_weights.h"

namespace sluice::sm90 {

// What these kernels cannot do, in a sentence; says nothing about the device.
Support supports_spec(const MoeSpec& spec);

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

class FusedMoe {
 public:
  // Allocates; `multiprocessors` 0 asks the device. Weights follow by set_weights.
  explicit FusedMoe(const MoeSpec& spec, int multiprocessors = 0);

  // Host weights to the device layout, at addresses that never change. Synchronises the stream once at the end.
  void set_weights(const weights::ExpertWeights& w, Stream stream);

  const MoeSpec& spec() const { return spec_; }
  int64_t weight_bytes() const;
  int64_t workspace_bytes(int64_t tokens, const GemmForce& force = {}) const;
  GemmChoice choice(int64_t tokens, const GemmForce& force = {}) const;
  void run(const MoeCall& call, Stream stream) const;

  // Prepared memory, for callers that fill it themselves (benchmarks).
  struct Matrix {
    WeightShape shape;
    DeviceBuffer weights, row_scale, block_scale;
  };
  Matrix& first() { return first_; }
  Matrix& second() { return second_; }

 private:
  struct Plan;
  Plan plan(int64_t tokens, const GemmForce& force, void* workspace) const;

  MoeSpec spec_;
  int multiprocessors_;
  Matrix first_, second_;
  DeviceBuffer bias_up_, bias_gate_, bias_down_, alpha_, beta_, limit_;
  float input_scale_[2] = {1.0f, 1.0f};
};

}  // namespace sluice::sm90
