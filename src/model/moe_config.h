// SPDX-License-Identifier: Apache-2.0
// What the mixture-of-experts blocks of all families have in common: the keys of their configuration, the router, the
// routed experts.
#pragma once

#include "model/moe_block.h"
#include "model/weight_reader.h"

namespace sluice::model {

struct MoeConfig {
  Dim experts;
  int64_t top_k = 0, inter = 0;
  routing::Method routing = routing::Method::softmax;
  int64_t groups = 1, top_groups = 1;  // sigmoid routing only
  float routed_scale = 1.0f;           // sigmoid routing only
  bool draft = false;                  // of the prediction layer, whose backend may be named separately
};

// Qwen3-MoE: softmax, renormalised when norm_topk_prob says so.
MoeConfig read_softmax_moe(const io::Config& config);
// DeepSeek-V3 and NemotronH: sigmoid with a correction bias, groups, renormalised and scaled. A key that is missing
// means what transformers makes of it, which differs by family.
struct SigmoidDefaults {
  int64_t groups = 1, top_groups = 1;  // n_group, topk_group
  double routed_scale = 1;             // routed_scaling_factor
};
MoeConfig read_sigmoid_moe(const io::Config& config, const SigmoidDefaults& defaults);

// The router and the experts under `module` ("model.layers.3.mlp."), which take rows of `width`; the router sees
// `hidden`. Shared experts and latent projections are the families' own.
MoeBlock load_moe_block(const WeightReader& s, const MoeConfig& c, activation::Activation act,
                        const std::string& module, int64_t layer, Dim hidden, Dim width);

// For a configuration of which n_shared_experts is 0: throws bad_file when there are some under `module` all the same.
void check_no_shared_experts(const WeightReader& s, const std::string& module);

}  // namespace sluice::model
