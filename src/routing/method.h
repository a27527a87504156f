// SPDX-License-Identifier: Apache-2.0
// The names of the routing methods, what they may read, and the arithmetic that several share.
#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>

#include "base/bf16.h"
#include "base/hd.h"
#include "base/named.h"

namespace sluice::routing {

// Numbers are those of the published RoutingMethodType enum.
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
  bool bf16 = true;                // weights, and the bias of a grouped choice, are rounded to bfloat16
};

// Of one token's logits over all experts; only methods with kRowSoftmax read it.
struct RowSoftmax {
  float max = 0.0f;  // the largest logit
  float sum = 1.0f;  // sum of exp(logit - max)
};

// The form of the published kernels (docs/numerics.md, Routing). It is exactly 0 below about -17 and exactly 1 above.
HD inline float sigmoid(float x) { return 0.5f * tanhf(0.5f * x) + 0.5f; }

// Added where weights are divided by a sum of sigmoids, which may all be 0.
inline constexpr float kSumEpsilon = 1e-20f;

// A key that orders experts: larger scores first, equal scores (-0 equals 0) by smaller id. NaN comes first, so that it
// shows in the output instead of hiding.
HD inline uint64_t selection_key(float score, uint32_t id) {
  const uint32_t u = std::bit_cast<uint32_t>(score + 0.0f);  // -0 becomes 0
  const uint32_t flip = (0u - (u >> 31)) | 0x80000000u;      // all bits of negatives, the sign of others; no branch
  const uint32_t ordered = score != score ? 0xffffffffu : u ^ flip;
  return static_cast<uint64_t>(ordered) << 32 | (0xffffffffu - id);
}
HD inline float score_of(uint64_t key) {
  const auto ordered = static_cast<uint32_t>(key >> 32);
  return std::bit_cast<float>((ordered & 0x80000000u) != 0 ? ordered & 0x7fffffffu : ~ordered);
}
HD inline int32_t id_of(uint64_t key) { return static_cast<int32_t>(0xffffffffu - static_cast<uint32_t>(key)); }

}  // namespace sluice::routing
