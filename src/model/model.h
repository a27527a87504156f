// SPDX-License-Identifier: Apache-2.0
// A whole language model behind one interface; models.h makes one from a checkpoint.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/context.h"
#include "model/batch.h"
#include "model/cache.h"
#include "model/observer.h"
#include "ops/matrix.h"
#include "ops/workspace.h"

namespace sluice::model {

struct ModelInfo {
  std::string architecture;   // "Qwen3MoeForCausalLM"
  DType dtype = DType::bf16;  // of activations and caches
  int64_t vocab = 0, hidden = 0, layers = 0;
  int64_t max_positions = 0;         // longest sequence that the configuration allows
  bool has_draft = false;            // draft() works
  std::vector<int32_t> stop_tokens;  // eos_token_id of generation_config.json, or else of config.json
  int64_t weight_bytes = 0;
  std::string experts;  // the first MoE layer's spec line, or "" when there is none
};

// Where results go; memory of the caller.
struct Outputs {
  float* logits = nullptr;  // [logit_rows, vocab], in the order of Batch::logit_rows
  void* hidden = nullptr;   // D [R, hidden] after the final norm, what draft() takes; null: not wanted
  Observer* observer = nullptr;
};

// Weights do not change after loading. One caller at a time: the layers share working memory.
class Model {
 public:
  virtual ~Model() = default;
  virtual const ModelInfo& info() const = 0;
  virtual const CacheShape& cache_shape() const = 0;

  // Runs the batch's rows through every layer. Allocates nothing once `workspace` has seen a batch as large.
  // Throws invalid_argument for token ids outside the vocabulary and sequences that do not fit the cache.
  virtual void forward(Context& ctx, const Batch& batch, Cache& cache, ops::Workspace& workspace,
                       const Outputs& out) const = 0;

  // The multi-token-prediction head (info().has_draft). Row r pairs `hidden` [R, hidden], what forward() or draft()
  // gave for position p, with tokens[r], the token of position p + 1; its logits are for position p + 2. positions[r]
  // and the sequences count as p. It writes its own cache layer only. Throws unsupported when there is no such head.
  virtual void draft(Context& ctx, const Batch& batch, const void* hidden, Cache& cache, ops::Workspace& workspace,
                     const Outputs& out) const;

  std::unique_ptr<Cache> make_cache(const CacheConfig& config) const {
    return std::make_unique<Cache>(cache_shape(), config);
  }
};

}  // namespace sluice::model
