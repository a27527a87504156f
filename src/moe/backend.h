// SPDX-License-Identifier: Apache-2.0
// The whole interface of a fused-MoE backend. backends.cc holds the ordered list; select.h chooses.
#pragma once

#include <functional>
#include <memory>

#include "base/context.h"
#include "base/support.h"
#include "spec/moe_spec.h"
#include "weights/expert_weights.h"

namespace sluice::moe {

// Copies of every rounding point, for bug reports and conformance: float32, as dequantised values, in [token, slot]
// order; rows of absent experts are zero.
struct Trace {
  Tensor input;  // [T, H]     GEMM1's rounded input; rows of tokens with no expert here may hold anything
  // [T, K, I] GEMM1's results in the model's units, as they enter the clamp and the activation: after bias and, for
  // weight_on_input, times the router weight. gate is empty when not gated.
  Tensor up, gate;
  Tensor activated;  // [T, K, I]  GEMM2's rounded input
  Tensor down;       // [T, K, H]  GEMM2's rounded result, before the router weight
};

// One call. T tokens, H hidden, E experts, K top-k; host or device memory as the backend says.
struct MoeArgs {
  int64_t tokens = 0;
  const void* hidden = nullptr;  // spec.dtype [T, H]

  // Either logits (the kernel routes) ...
  const void* logits = nullptr;  // logits_dtype [T, E]
  DType logits_dtype = DType::bf16;
  const void* bias = nullptr;  // bias_dtype [E], for the methods that take one; null = 0
  DType bias_dtype = DType::f32;
  // ... or the routing itself: ids global, -1 or foreign ids contribute nothing.
  const int32_t* topk_ids = nullptr;   // [T, K]; packed (id << 16 | bf16 weight) when topk_weights is null
  const void* topk_weights = nullptr;  // topk_weights_dtype [T, K]
  DType topk_weights_dtype = DType::f32;

  void* output = nullptr;     // spec.dtype [T, H]; not finalized: [T, K, H], rows of absent experts zero
  void* workspace = nullptr;  // workspace_bytes(tokens) bytes, 64-byte aligned; contents need not survive
  // Optional copies of what was decided: [T, K] global ids (-1: none) and float weights.
  int32_t* chosen_ids = nullptr;
  float* chosen_weights = nullptr;
  Trace* trace = nullptr;  // only where the backend's memory is the host's
};

// Experts in a backend's own layout, ready to run. Immutable after preparation but for refit().
class MoeLayer {
 public:
  virtual ~MoeLayer() = default;
  virtual const MoeSpec& spec() const = 0;
  virtual int64_t weight_bytes() const = 0;
  virtual int64_t workspace_bytes(int64_t tokens) const = 0;
  virtual void run(Context& ctx, const MoeArgs& args) const = 0;
  // Prepares other weights of the same spec into the same memory.
  virtual void refit(Context& ctx, const weights::ExpertWeights& w) = 0;
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::string_view name() const = 0;
  // Empty reason: it runs this spec. Otherwise the one sentence that `explain` and a forced choice print.
  virtual Support supports(const MoeSpec& spec) const = 0;
  virtual std::unique_ptr<MoeLayer> prepare(Context& ctx, const MoeSpec& spec,
                                            const weights::ExpertWeights& w) const = 0;
};

}  // namespace sluice::moe
