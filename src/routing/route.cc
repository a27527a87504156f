// SPDX-License-Identifier: Apache-2.0
#include "routing/route.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/math.h"

namespace sluice::routing {

namespace {

// The K largest scores seen, as descending keys. Insertion into a short sorted array: after the first K, a random score
// gets in with probability K / seen, so a row costs about E comparisons and K^2 ln(E / K) / 2 moves. Scores must be
// inserted in the order of their ids: an equal score that comes later loses.
class Best {
 public:
  Best(uint64_t* keys, int k) : keys_(keys), k_(k) {}

  void insert(float score, uint32_t id) {
    if (score <= worst_) return;  // false for NaN, which comes first
    const uint64_t key = selection_key(score, id);
    if (count_ == k_) {
      if (key < keys_[k_ - 1]) return;
      --count_;
    }
    int at = count_++;
    for (; at > 0 && keys_[at - 1] < key; --at) keys_[at] = keys_[at - 1];
    keys_[at] = key;
    if (count_ == k_) worst_ = score_of(keys_[k_ - 1]);
  }

 private:
  uint64_t* keys_;
  int k_, count_ = 0;
  float worst_ = std::numeric_limits<float>::quiet_NaN();  // no comparison holds until K are there
};

// Memory of one row: chosen keys of experts and of groups, scores.
struct Scratch {
  uint64_t* chosen;  // [max(K, groups)]
  float* scores;     // [E]
};

template <class Row>
RowSoftmax row_softmax(const Row& x, int experts) {
  RowSoftmax row{-std::numeric_limits<float>::infinity(), 0.0f};
  for (int e = 0; e < experts; ++e) row.max = std::max(row.max, x(e));
  for (int e = 0; e < experts; ++e) row.sum += expf(x(e) - row.max);
  return row;
}

// Leaves -infinity in the scores of the experts outside the best groups. A group's score is the sum of its two largest,
// and NaN where one of its scores is: that comes first, so that it shows.
void mask_groups(const Params& p, Scratch s) {
  const int size = p.experts / p.groups;
  constexpr float kNone = -std::numeric_limits<float>::infinity();
  Best best(s.chosen, p.top_groups);
  for (int g = 0; g < p.groups; ++g) {
    const float* scores = s.scores + g * size;
    float first = kNone, second = kNone;
    bool nan = false;
    for (int i = 0; i < size; ++i) {
      nan |= std::isnan(scores[i]);
      second = std::max(second, std::min(first, scores[i]));
      first = std::max(first, scores[i]);
    }
    const float score = size > 1 ? first + second : first;
    best.insert(nan ? std::numeric_limits<float>::quiet_NaN() : score, static_cast<uint32_t>(g));
  }
  for (int g = 0; g < p.groups; ++g) {
    const bool kept = std::any_of(s.chosen, s.chosen + p.top_groups, [&](uint64_t key) { return id_of(key) == g; });
    if (!kept) std::fill(s.scores + g * size, s.scores + (g + 1) * size, kNone);
  }
}

// `Row` reads a logit of the token as float32.
template <class M, class Row>
void route_row(const Params& p, const Row& x, Values bias, int32_t* ids, float* weights, Scratch s) {
  RowSoftmax row;
  if constexpr (M::kRowSoftmax) row = row_softmax(x, p.experts);
  for (int e = 0; e < p.experts; ++e) {
    const float b = M::kBias && bias ? choice_bias(bias[e], p) : 0.0f;
    s.scores[e] = M::key(x(e), b, row);
  }
  if (p.groups > 1) mask_groups(p, s);

  Best best(s.chosen, p.top_k);
  for (int e = 0; e < p.experts; ++e) best.insert(s.scores[e], static_cast<uint32_t>(e));

  const float top = x(id_of(s.chosen[0]));
  float sum = 0.0f;
  for (int k = 0; k < p.top_k; ++k) {
    ids[k] = id_of(s.chosen[k]);
    weights[k] = M::term(x(ids[k]), top, row);
    sum += weights[k];
  }
  for (int k = 0; k < p.top_k; ++k) {
    const float w = M::weight(weights[k], sum, p);
    weights[k] = p.bf16 ? round_to_bf16(w) : w;
  }
}

int64_t chosen_count(const Params& p) { return std::max(p.top_k, p.groups); }

}  // namespace

void validate(Method method, const Params& p) {
  const auto name = name_of(kMethods, method);
  check(p.experts >= 1, "experts is {}; it must be positive", p.experts);
  check(p.top_k >= 1 && p.top_k <= p.experts, "top_k is {}; it must be in [1, experts = {}]", p.top_k, p.experts);
  check(method != Method::llama4 || p.top_k == 1, "top_k is {} with routing llama4, which chooses one expert", p.top_k);
  if (method == Method::deepseek_v3) {
    check(p.groups >= 1 && p.experts % p.groups == 0, "groups is {}; it must divide experts = {}", p.groups, p.experts);
    check(p.top_groups >= 1 && p.top_groups <= p.groups, "top_groups is {}; it must be in [1, groups = {}]",
          p.top_groups, p.groups);
    const int allowed = p.groups > 1 ? p.experts / p.groups * p.top_groups : p.experts;
    check(p.top_k <= allowed, "top_k is {}, but the {} best groups hold {} experts", p.top_k, p.top_groups, allowed);
  } else {
    check(p.groups == 1 && p.top_groups == 1,
          "groups is {}, top_groups {} with routing {}; only deepseek_v3 has groups", p.groups, p.top_groups, name);
  }
  const bool scales = method == Method::deepseek_v3 || method == Method::minimax2;
  check(std::isfinite(p.scale) && (scales || p.scale == 1.0f),
        "routed_scale is {} with routing {}; only deepseek_v3 and minimax2 take a scale, which must be finite", p.scale,
        name);
  check(p.renormalize || method == Method::sigmoid_renorm,
        "norm_topk is off with routing {}, which ignores it; only sigmoid_renorm takes it", name);
}

int64_t route_scratch_bytes(const Params& p) {
  return round_up<int64_t>(
      chosen_count(p) * static_cast<int64_t>(sizeof(uint64_t)) + p.experts * static_cast<int64_t>(sizeof(float)), 64);
}

void route(Method method, const Params& p, Values logits, Values bias, int64_t tokens, int32_t* ids, float* weights,
           void* scratch) {
  Scratch s{static_cast<uint64_t*>(scratch), nullptr};
  s.scores = reinterpret_cast<float*>(s.chosen + chosen_count(p));
  Methods::visit(method, [&]<class M> {
    for (int64_t t = 0; t < tokens; ++t) {
      int32_t* row_ids = ids + t * p.top_k;
      float* row_weights = weights + t * p.top_k;
      if (logits.bf16) {
        const auto* x = static_cast<const bf16_t*>(logits.data) + t * p.experts;
        route_row<M>(
            p, [x](int e) { return bf16_to_float(x[e]); }, bias, row_ids, row_weights, s);
      } else {
        const auto* x = static_cast<const float*>(logits.data) + t * p.experts;
        route_row<M>(
            p, [x](int e) { return x[e]; }, bias, row_ids, row_weights, s);
      }
    }
  });
}

void read_given(const int32_t* given_ids, Values given_weights, float scale, int64_t count, int32_t* ids,
                float* weights) {
  for (int64_t i = 0; i < count; ++i) {
    ids[i] = given_weights ? given_ids[i] : packed_id(given_ids[i]);
    weights[i] = scale * (given_weights ? given_weights[i] : packed_weight(given_ids[i]));
  }
}

}  // namespace sluice::routing
