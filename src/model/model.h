// SPDX-License-Identifier: Apache-2.0
// The interface of a whole language model; models.h makes one from a checkpoint.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "model/batch.h"
#include "model/cache.h"
#include "model/observer.h"
#include "ops/ops.h"

namespace sluice::model {

struct ModelInfo {
  std::string architecture;      // "Qwen3MoeForCausalLM"
  DType dtype = DType::bf16;     // of activations
  DType kv_dtype = DType::bf16;  // of cached keys and values: `dtype` or e4m3
  int64_t vocab = 0, hidden = 0, layers = 0;
  int64_t max_positions = 0;         // longest sequence that the configuration allows
  bool has_draft = false;            // draft() works
  bool row_invariant = true;         // a row's logits do not depend on the batch's other rows, bit for bit
  std::vector<int32_t> stop_tokens;  // eos_token_id of generation_config.json, or else of config.json
  int64_t weight_bytes = 0;
  int64_t expert_bytes = 0, embedding_bytes = 0;  // of these, the routed experts and the embedding, read in parts
  std::string experts;                            // the first MoE layer's spec line, or "" when there is none
};

// Where results go; the caller's memory on the device.
struct Outputs {
  ops::Matrix logits;  // f32 [logit_rows, vocab], in the order of Batch::logits_of; data null: not wanted
  ops::Matrix hidden;  // D [R, hidden] after the final norm, what draft() takes; data null: not wanted
  Observer* observer = nullptr;
};

// Weights do not change after loading. One caller at a time: the layers share working memory.
class Model {
 public:
  virtual ~Model() = default;
  virtual const ModelInfo& info() const = 0;
  virtual const CacheShape& cache_shape() const = 0;

  // Enqueues the batch's rows through every layer, on the device of `ops`. Allocates nothing once the workspace has
  // seen a batch as large. The batch was checked when it was built (BatchBuilder).
  virtual void forward(ops::Ops& ops, const Batch& batch, Cache& cache, const Outputs& out) const = 0;

  // The multi-token-prediction head (info().has_draft). Row r pairs `hidden` [R, hidden], what forward() or draft()
  // gave for position p, with tokens[r], the token of position p + 1; its logits are for position p + 2. positions[r]
  // and the sequences count as p. It writes its own cache layer only. Throws unsupported when there is no such head.
  virtual void draft(ops::Ops& ops, const Batch& batch, ops::ConstMatrix hidden, Cache& cache,
                     const Outputs& out) const;
};

}  // namespace sluice::model
