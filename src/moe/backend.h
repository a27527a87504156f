// SPDX-License-Identifier: Apache-2.0
// The whole interface of a fused-MoE backend. backends.cc holds the ordered list; select.h chooses.
#pragma once

#include <memory>
#include <optional>

#include "base/support.h"
#include "device/context.h"
#include "spec/moe_spec.h"
#include "weights/expert_weights.h"

namespace sluice::moe {

// Copies of every rounding point, for bug reports and conformance: float32, as dequantised values, in [token, slot]
// order; rows of absent experts are zero.
struct Trace {
  Tensor input;  // [T, H]     GEMM1's rounded input; rows of tokens with no expert here may hold anything
  // [T, K, I] GEMM1's results, dequantised, as they enter the clamp and the activation: after bias and, for
  // weight_on_input, times the router weight. gate is empty when not gated.
  Tensor up, gate;
  Tensor activated;  // [T, K, I]  GEMM2's rounded input
  Tensor down;       // [T, K, H]  GEMM2's rounded result, before the router weight
};

// One call. T tokens, H hidden, E experts, K top-k; every pointer is memory of MoeLayer::device().
struct MoeArgs {
  int64_t tokens = 0;
  // How many of them are real, [1], read when the call runs: a recorded call takes the number of its replay. Rows
  // beyond keep what they had. Null: all.
  const int32_t* num_tokens = nullptr;
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

  void* output = nullptr;      // spec.dtype [T, H]; not finalized: [T, K, H], rows of absent experts zero
  bool finalize = true;        // false: this call is not, whatever the spec says (finalizes())
  void* workspace = nullptr;   // Device::kAlignment-byte aligned (64 on the host); contents need not survive
  int64_t workspace_size = 0;  // its bytes, at least workspace_bytes(tokens)
  // Optional copies of what was decided: [T, K] global ids (-1: none) and float weights.
  int32_t* chosen_ids = nullptr;
  float* chosen_weights = nullptr;
  Trace* trace = nullptr;  // only on the host
  bool pdl = true;  // CUDA: programmatic dependent launch between the kernels of a call; the results are the same
  // CUDA: the kernel ahead in the queue is one of this library's. Those let the next one start before they end, and
  // leave much shared memory: the first kernel warms up its instruction cache meanwhile. After kernels of others it
  // does not, and both kernels of one token ask for the largest shared memory. The results are the same.
  bool follows_own = true;
};

// Whether a call adds up the K results of a token.
inline bool finalizes(const MoeSpec& spec, const MoeArgs& args) { return spec.finalize && args.finalize; }

// Memory of the caller for a prepared layer, aligned to Device::kAlignment. It outlives the layer, is written in queue
// order, and keeps its address through refits. No data: the layer allocates.
struct PreparedMemory {
  void* data = nullptr;
  int64_t size = 0;
};

class Staging;  // staged_layer.h

struct PrepareOptions {
  PreparedMemory memory;  // of prepared_bytes() at least; backends without prepared_bytes() refuse it
  // Shared by layers that run one after another: the first staged one fills it. Null: each layer has its own.
  std::shared_ptr<Staging>* staging = nullptr;
};

// Experts in a backend's own layout, ready to run on the memory of one device. Immutable but for refit().
class MoeLayer {
 public:
  virtual ~MoeLayer() = default;
  virtual const MoeSpec& spec() const = 0;
  virtual DeviceId device() const { return {}; }
  virtual int64_t weight_bytes() const = 0;
  // What any call of up to `tokens` tokens needs.
  virtual int64_t workspace_bytes(int64_t tokens) const = 0;
  // A token's result is the same, bit for bit, whatever else is in the batch and however large that is.
  virtual bool row_invariant() const = 0;
  // Whether a caller of `tokens` tokens who adds up the K results itself, where it reads them next, saves a launch
  // (MoeArgs::finalize; their weights are chosen_weights, or 1 with spec.weight_on_input). Any call may ask for them.
  virtual bool finalize_can_wait(int64_t) const { return false; }
  // Enqueues the call on ctx.queue, which is of device(). On a GPU it allocates nothing, waits for nothing and reads
  // nothing on the host, and several queues may run one layer at a time, each with a workspace of its own.
  virtual void run(Context& ctx, const MoeArgs& args) const = 0;
  // Prepares other weights of the same spec into the same memory, in queue order: recorded calls see them. On a GPU
  // codes, block scales and global scales may be in its memory (16-byte aligned), the small tensors are on the host.
  virtual void refit(Context& ctx, const weights::ExpertWeights& w) = 0;
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::string_view name() const = 0;
  // Empty reason: it runs this spec. Otherwise the one sentence that `explain` and a forced choice print.
  virtual Support supports(const MoeSpec& spec) const = 0;
  // Bytes of a prepared layer, for PrepareOptions::memory; needs no device. Nothing: this backend allocates itself.
  virtual std::optional<int64_t> prepared_bytes(const MoeSpec&) const { return {}; }
  // Whether prepare() reads weights that lie in the memory of `device`.
  virtual bool takes_weights_on(DeviceId device) const { return device.shares_host_memory(); }
  // Whether prepare() and refit() read experts whose codes lie apart, in a checkpoint's mapped files (QuantTensor).
  virtual bool reads_apart() const { return false; }
  // A layer that runs on the memory of ctx.device(). A GPU's backend on a host context gives a StagedLayer.
  virtual std::unique_ptr<MoeLayer> prepare(Context& ctx, const MoeSpec& spec, const weights::ExpertWeights& w,
                                            const PrepareOptions& options = {}) const = 0;
};

}  // namespace sluice::moe
