// SPDX-License-Identifier: Apache-2.0
// THE LIST of routing methods. Numbers are those of the published RoutingMethodType enum.
#pragma once

#include <array>
#include <cstdint>

#include "base/named.h"

namespace sluice::routing {

enum class Method : uint8_t {
  softmax = 0,            // "Default": softmax over all experts, then top-k, not renormalised
  renormalize = 1,        // top-k of the logits, then softmax over the k
  deepseek_v3 = 2,        // sigmoid, + bias for the choice, groups, renormalise, scale
  llama4 = 3,             // top-1, sigmoid
  renormalize_naive = 4,  // softmax, top-k, renormalise
  topk = 5,               // top-k of the logits, weights are the logits
  sigmoid_renorm = 6,
  minimax2 = 7,
  sigmoid = 8,
  topk_sigmoid = 9,
};

inline constexpr std::array<Named<Method>, 10> kMethods{{{Method::softmax, "softmax"},
                                                         {Method::renormalize, "renormalize"},
                                                         {Method::deepseek_v3, "deepseek_v3"},
                                                         {Method::llama4, "llama4"},
                                                         {Method::renormalize_naive, "renormalize_naive"},
                                                         {Method::topk, "topk"},
                                                         {Method::sigmoid_renorm, "sigmoid_renorm"},
                                                         {Method::minimax2, "minimax2"},
                                                         {Method::sigmoid, "sigmoid"},
                                                         {Method::topk_sigmoid, "topk_sigmoid"}}};

// What a method may read beside the logits.
struct Params {
  int experts = 0, top_k = 0;
  int groups = 1, top_groups = 1;  // deepseek_v3 only
  float scale = 1.0f;              // routed_scaling_factor: deepseek_v3 and minimax2 only
  bool renormalize = true;         // norm_topk_prob: sigmoid_renorm only
};

}  // namespace sluice::routing
