// SPDX-License-Identifier: Apache-2.0
// The one shape that all models here have: embedding, a list of x += mixer(norm(x)), a last norm, a head.
// qwen3_moe.cc, nemotron_h.cc and deepseek_v3.cc fill it from a configuration; a DeepSeek draft head is a short one
// beside the main list.
#pragma once

#include <optional>
#include <variant>
#include <vector>

#include "model/attention_layer.h"
#include "model/mamba_layer.h"
#include "model/mla_layer.h"
#include "model/mlp.h"
#include "model/model.h"
#include "model/moe_layer.h"
#include "ops/rope.h"

namespace sluice::model {

using Mixer = std::variant<AttentionLayer, MlaLayer, MambaLayer, Mlp, MoeLayer>;

struct Sublayer {
  Norm norm;
  Mixer mixer;
  bool ends_layer = true;  // false: another sublayer of the same layer follows (attention before MLP)
};

// Multi-token prediction: h' = proj([norm(embedding of the next token) | norm(hidden)]), sublayers, norm, head.
struct DraftHead {
  Tensor embedding;
  Norm embedding_norm, hidden_norm;
  Dense projection;  // [hidden, 2 * hidden]
  std::vector<Sublayer> sublayers;
  Norm final_norm;
  Dense head;
};

class Decoder : public Model {
 public:
  struct Parts {
    ModelInfo info;    // vocab, hidden and weight_bytes are filled in here
    Tensor embedding;  // bf16 or f32 [V, hidden]
    std::vector<Sublayer> sublayers;
    Norm final_norm;
    Dense head;                 // [V, hidden]
    ops::RopeFrequencies rope;  // empty: no rotary embedding
    std::optional<DraftHead> draft;
  };
  // Numbers the cache's layers. Throws when the parts do not fit each other.
  explicit Decoder(Parts parts);

  const ModelInfo& info() const override { return parts_.info; }
  const CacheShape& cache_shape() const override { return cache_shape_; }
  void forward(Context& ctx, const Batch& batch, Cache& cache, ops::Workspace& workspace,
               const Outputs& out) const override;
  void draft(Context& ctx, const Batch& batch, const void* hidden, Cache& cache, ops::Workspace& workspace,
             const Outputs& out) const override;

 private:
  void number_cache_layers(std::vector<Sublayer>& sublayers);
  void verify(const Batch& batch, const Cache& cache) const;
  void angles(Step& step) const;
  void run_sublayers(const Step& step, const std::vector<Sublayer>& sublayers, ops::Matrix x) const;
  void finish(const Step& step, ops::ConstMatrix x, const Norm& norm, const Dense& head, const Outputs& out) const;

  Parts parts_;
  CacheShape cache_shape_;
};

}  // namespace sluice::model
