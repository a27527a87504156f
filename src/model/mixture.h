// SPDX-License-Identifier: Apache-2.0
// What the mixtures of all families have in common: the keys of their configuration, the router, the routed experts.
#pragma once

#include "model/moe_layer.h"
#include "model/source.h"

namespace sluice::model {

struct MixtureConfig {
  Dim experts;
  int64_t top_k = 0, inter = 0;
  routing::Method routing = routing::Method::softmax;
  int64_t groups = 1, top_groups = 1;  // sigmoid routing only
  float routed_scale = 1.0f;           // sigmoid routing only
  bool draft = false;                  // of the prediction layer: its backend may be named apart
};

// Qwen3-MoE: softmax, renormalised when norm_topk_prob says so.
MixtureConfig read_softmax_mixture(const io::Config& config);
// DeepSeek-V3 and NemotronH: sigmoid with a correction bias, groups, renormalised and scaled.
MixtureConfig read_sigmoid_mixture(const io::Config& config);

// The router and the experts under `module` ("model.layers.3.mlp."), which take rows of `width`; the router sees
// `hidden`. Shared experts and latent projections are the families' own.
MoeLayer load_mixture(const Source& s, const MixtureConfig& c, activation::Activation act, const std::string& module,
                      int64_t layer, Dim hidden, Dim width);

}  // namespace sluice::model
