// SPDX-License-Identifier: Apache-2.0
// The mixture-of-experts block of a model: the router's projection, the fused experts of the backend that
// moe::select chose, shared experts, and NemotronH's latent projections around the routed part.
#pragma once

#include <memory>
#include <optional>

#include "model/mlp.h"
#include "moe/backend.h"

namespace sluice::model {

struct MoeBlock {
  int index = 0;                               // of the layer, for observers
  std::string experts_name;                    // "model.layers.3.mlp.experts", for calibration
  Dense router;                                // [E, hidden]
  bool router_floats = true;                   // logits in float32 whatever D (DeepSeek, NemotronH), or in D (Qwen3)
  bool random_routing = false;                 // benchmarks: random logits replace the router's
  int64_t number = 0;                          // among the blocks of its pass; the Decoder numbers them
  Tensor router_bias;                          // f32 [E] or empty
  std::optional<Dense> latent_in, latent_out;  // hidden -> latent before the experts, back after them
  std::shared_ptr<const moe::MoeLayer> experts;
  std::optional<Mlp> shared;  // sees the full hidden state, added with weight 1

  // Memory for results that are not added up here.
  struct Unsummed {
    ops::Matrix results;       // D [R * top_k, hidden]; no data: there is none
    float* weights = nullptr;  // [R * top_k]
  };
  // Whether the norm that follows does well to add up the results of a step of `rows` rows: it saves a launch.
  bool sum_can_wait(int64_t rows) const { return !latent_out && experts->finalize_can_wait(rows); }
  // Memory for the router's logits of the batch.
  ops::Matrix logits(const ForwardContext& forward) const {
    return router_floats ? forward.floats(router.rows()) : forward.matrix(router.rows());
  }
  // given: the router's logits, if the norm before has computed them; else no data.
  // The result: y, or where shared experts have not been added yet y and `more`, which is memory like y. In the place
  // of y the results in `unsummed`, where it has memory: only if sum_can_wait(), and without an observer.
  ops::Change run(const ForwardContext& forward, const ops::LinearInput& x, ops::Matrix given, ops::Matrix y,
                  ops::Matrix more, const Unsummed& unsummed) const;
  ops::Rounding rounding(int64_t rows) const;
  int64_t weight_bytes() const;

 private:
  void observe(const ForwardContext& forward, const moe::Trace& trace) const;
};

}  // namespace sluice::model
