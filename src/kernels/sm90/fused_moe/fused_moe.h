// SPDX-License-Identifier: Apache-2.0
// The fused MoE of one layer on one device: repacked weights and the chain of launches. Stream-ordered; run() allocates
// nothing, reads nothing on the host and may be captured in a graph.
#pragma once

#include "kernels/sm90/device.h"
#include "kernels/sm90/fused_moe/plan.h"
#include "kernels/sm90/repack/matrix.h"
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
  bool finalize = true;        // false: as if the spec's finalize were
  void* workspace = nullptr;   // 256-byte aligned
  int64_t workspace_size = 0;  // its bytes
  int32_t* chosen_ids = nullptr;
  float* chosen_weights = nullptr;
  bool pdl = true;
  bool follows_own = true;  // the kernel ahead is one of this library's (moe::MoeArgs)
  GemmForce force;          // of tile and splits, for tests and benchmarks
};

struct RowsArgs;

class FusedMoe {
 public:
  // On the current device, in the caller's memory of moe_memory(spec).bytes or in its own, which is then the only
  // allocation; `multiprocessors` 0 asks the device. Weights follow by set_weights.
  explicit FusedMoe(const MoeSpec& spec, int multiprocessors = 0, const CallerMemory& memory = {});

  // Repacks weights to the device layout, at addresses that never change, in stream order. Codes, scales and global
  // scales may be in host memory (staged in parts) or in the memory of this device (read in place, 16-byte aligned,
  // until the stream has passed this call). The small tensors are in host memory. Graphs that were captured before run
  // with the new weights. A refit must give the same optional tensors as the first call: biases, alpha, beta and limit.
  void set_weights(const weights::ExpertWeights& w, Stream stream);

  const MoeSpec& spec() const { return spec_; }
  int device() const { return device_; }
  int64_t weight_bytes() const;
  // What any call of up to `tokens` tokens needs; with `force` what a call of exactly `tokens` does.
  int64_t workspace_bytes(int64_t tokens) const;
  int64_t workspace_bytes(int64_t tokens, const GemmForce& force) const;
  // The tile and splits of the grouped GEMM. A call that runs_one_token() takes has neither.
  GemmChoice choice(int64_t tokens, const GemmForce& force = {}) const;
  void run(const MoeCall& call, Stream stream) const;
  // Whether a call of `tokens` that finalizes does so in a launch of its own, of so few tokens that whoever reads the
  // output next can as well.
  bool finalize_can_wait(int64_t tokens) const;

  // Prepared memory, for callers that fill it themselves (benchmarks).
  using Matrix = RepackedMatrix;
  Matrix& first() { return first_; }
  Matrix& second() { return second_; }

 private:
  void write_warm_up(Stream stream);
  bool finalizes(const MoeCall& call) const { return spec_.finalize && call.finalize; }
  RouteArgs route_args(const MoeCall& call, const MoePlan& p) const;
  RowsArgs row_args(const MoeCall& call, const MoePlan& p, const RouteArgs& route) const;
  GroupedGemmArgs gemm_args(const MoeCall& call, const MoePlan& p) const;
  void multiply(const MoeCall& call, const MoePlan& p, GroupedGemmArgs gemm, const RowsArgs& rows, Stream stream) const;
  void multiply_one_token(const MoeCall& call, const MoePlan& p, const GroupedGemmArgs& gemm, const RouteArgs& route,
                          Stream stream) const;
  void round_between(const MoePlan& p, const GemmArgs& first, RowsArgs rows, Stream stream, bool pdl) const;

  MoeSpec spec_;
  int device_, multiprocessors_;
  WorkspaceBound workspace_;
  MoeMemory memory_at_;
  bool given_memory_;
  DeviceBuffer memory_;  // what follows are parts of it
  Matrix first_, second_;
  DeviceBuffer bias_up_, bias_gate_, bias_down_, alpha_, beta_, limit_;
  DeviceBuffer input_scales_;  // InputScale of each GEMM
  InputScale sent_scales_[2];  // what it holds
  DeviceBuffer warm_up_;       // warm_up_bytes()
  bool filled_ = false;
};

}  // namespace sluice::sm90
