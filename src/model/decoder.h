// SPDX-License-Identifier: Apache-2.0
// The one shape that all models here have: embedding, a list of x += mixer(norm(x)), a last norm, a head.
// qwen3_moe.cc, nemotron_h.cc and deepseek_v3.cc fill it from a configuration. DeepSeek's draft head is a second, short
// list of such sublayers.
#pragma once

#include <optional>
#include <variant>
#include <vector>

#include "model/attention_layer.h"
#include "model/mamba_layer.h"
#include "model/mla_layer.h"
#include "model/mlp.h"
#include "model/model.h"
#include "model/moe_block.h"

namespace sluice::model {

using Mixer = std::variant<AttentionLayer, MlaLayer, MambaLayer, Mlp, MoeBlock>;

struct Sublayer {
  ops::RmsNorm norm;
  Mixer mixer;
  bool ends_layer = true;  // false: another sublayer of the same layer follows (attention before MLP)
};

// Multi-token prediction: h' = proj([norm(embedding of the next token) | norm(hidden)]), sublayers, norm, head.
struct DraftHead {
  Tensor embedding;
  ops::RmsNorm embedding_norm, hidden_norm;
  Dense projection;  // [hidden, 2 * hidden]
  std::vector<Sublayer> sublayers;
  ops::RmsNorm final_norm;
  Dense head;
};

class Decoder : public Model {
 public:
  struct Parts {
    ModelInfo info;    // vocab, hidden and weight_bytes are filled in here
    Tensor embedding;  // bf16 or f32 [V, hidden]
    std::vector<Sublayer> sublayers;
    ops::RmsNorm final_norm;
    Dense head;                 // [V, hidden]
    ops::RopeFrequencies rope;  // empty: no rotary embedding
    std::optional<DraftHead> draft;
  };
  // Numbers the cache's layers. Throws when the parts do not fit each other.
  explicit Decoder(Parts parts);

  const ModelInfo& info() const override { return parts_.info; }
  const CacheShape& cache_shape() const override { return cache_shape_; }
  void forward(ops::Ops& ops, const Batch& batch, Cache& cache, const Outputs& out) const override;
  void draft(ops::Ops& ops, const Batch& batch, ops::ConstMatrix hidden, Cache& cache,
             const Outputs& out) const override;

 private:
  void number_layers(std::vector<Sublayer>& sublayers);
  ForwardContext begin(ops::Ops& ops, const Batch& batch, Cache& cache, const std::vector<Sublayer>& sublayers,
                       Observer* observer) const;
  void run_sublayers(const ForwardContext& forward, const std::vector<Sublayer>& sublayers, ops::Matrix x) const;
  void finish(const ForwardContext& forward, ops::ConstMatrix x, const ops::RmsNorm& norm, const Dense& head,
              const Outputs& out) const;

  Parts parts_;
  CacheShape cache_shape_;
};

}  // namespace sluice::model
