// SPDX-License-Identifier: Apache-2.0
// Routing in double precision, written from docs/numerics.md (Routing) with a full sort. Shares nothing
// with src/routing but the parameter struct.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

#include "routing/method.h"

namespace sluice::test {

struct ReferenceChoice {
  std::vector<int> ids;         // K, descending key
  std::vector<double> weights;  // not rounded to bfloat16
  double weight_error = 0;      // what float32 terms may differ from these, absolute
  bool certain = true;          // false: keys are closer than float32 can tell apart
};

// The published sigmoid saturates because each step is float32; its steps are rounded here too.
inline double reference_sigmoid(double x) {
  const auto t = static_cast<float>(std::tanh(0.5 * x));
  return static_cast<float>(0.5 * t + 0.5);
}

inline ReferenceChoice reference_route(routing::Method method, const routing::Params& p, const std::vector<double>& x,
                                       std::vector<double> bias = {}) {
  using routing::Method;
  const int experts = p.experts, k = p.top_k;
  constexpr double kInf = std::numeric_limits<double>::infinity();
  bias.resize(x.size(), 0.0);
  const bool grouped = method == Method::deepseek_v3 && p.groups > 1;
  if (grouped && p.bf16) {  // nearest bfloat16: 8 significant bits
    for (double& b : bias) {
      if (b == 0) continue;
      int e = 0;
      const double m = std::frexp(b, &e);
      b = std::ldexp(std::nearbyint(std::ldexp(m, 8)), e - 8);
    }
  }

  const double max = *std::max_element(x.begin(), x.end());
  double total = 0;
  for (double v : x) total += std::exp(v - max);
  std::vector<double> sig(x.size()), key(x.size());
  for (size_t e = 0; e < x.size(); ++e) {
    sig[e] = reference_sigmoid(x[e]);
    switch (method) {
      case Method::softmax:
        key[e] = std::exp(x[e] - max) / total;
        break;
      case Method::sigmoid:
      case Method::sigmoid_renorm:
        key[e] = sig[e];
        break;
      case Method::minimax2:
      case Method::deepseek_v3:
        key[e] = sig[e] + bias[e];
        break;
      default:
        key[e] = x[e];
    }
  }
  const bool raw = method == Method::renormalize || method == Method::renormalize_naive || method == Method::topk ||
                   method == Method::topk_sigmoid || method == Method::llama4;
  const bool soft_key = method == Method::softmax;
  double largest = 1;
  for (double v : key) largest = std::max(largest, std::fabs(v));
  // How far float32 keys may be off: sums of a sigmoid and a bias absolutely, softmax values relatively.
  const double resolution = raw || soft_key ? 0 : 1e-6 * largest;

  ReferenceChoice out;
  // Two neighbours in the sorted order differ for sure, or tie for sure because they are the same input.
  const auto sure = [&](double a, double b, bool same_input) {
    return same_input || std::fabs(a - b) > resolution + (soft_key ? 1e-5 * std::fabs(a) + 1e-37 : 0);
  };

  if (grouped) {
    const int size = experts / p.groups;
    std::vector<double> score(static_cast<size_t>(p.groups));
    std::vector<std::vector<std::array<double, 3>>> best(score.size());  // the one or two members that make the score
    for (int g = 0; g < p.groups; ++g) {
      std::vector<std::array<double, 3>> members;
      for (auto e = static_cast<size_t>(g * size); e < static_cast<size_t>((g + 1) * size); ++e)
        members.push_back({key[e], x[e], bias[e]});
      std::sort(members.rbegin(), members.rend());
      members.resize(static_cast<size_t>(std::min(size, 2)));
      for (const auto& m : members) score[static_cast<size_t>(g)] += m[0];
      best[static_cast<size_t>(g)] = members;
    }
    std::vector<int> order(static_cast<size_t>(p.groups));
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](int a, int b) { return score[static_cast<size_t>(a)] > score[static_cast<size_t>(b)]; });
    // Sure when nothing is near the boundary but groups that tie with the last one taken by the same inputs.
    const auto last = static_cast<size_t>(order[static_cast<size_t>(p.top_groups - 1)]);
    const auto next = static_cast<size_t>(order[static_cast<size_t>(std::min(p.top_groups, p.groups - 1))]);
    for (size_t g = 0; g < score.size() && p.top_groups < p.groups; ++g)
      for (size_t edge : {last, next})
        if (std::fabs(score[g] - score[edge]) <= 4 * resolution && best[g] != best[edge]) out.certain = false;
    for (int i = p.top_groups; i < p.groups; ++i)
      for (int e = order[static_cast<size_t>(i)] * size; e < (order[static_cast<size_t>(i)] + 1) * size; ++e)
        key[static_cast<size_t>(e)] = -kInf;
  }

  std::vector<int> order(x.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int a, int b) { return key[static_cast<size_t>(a)] > key[static_cast<size_t>(b)]; });
  // Every neighbouring pair down to the first sure gap below the chosen ones: a run of equal inputs may go on past
  // them.
  for (int i = 0; i + 1 < experts; ++i) {
    const auto a = static_cast<size_t>(order[static_cast<size_t>(i)]);
    const auto b = static_cast<size_t>(order[static_cast<size_t>(i + 1)]);
    const bool saturated =
        !raw && !soft_key && bias[a] == bias[b] && std::fabs(x[a]) > 20 && std::fabs(x[b]) > 20 && sig[a] == sig[b];
    const bool same = (x[a] == x[b] && bias[a] == bias[b]) || saturated;
    out.certain = out.certain && sure(key[a], key[b], same);
    if (!out.certain || (i >= k - 1 && !same)) break;
  }
  out.ids.assign(order.begin(), order.begin() + k);

  std::vector<double> term(static_cast<size_t>(k));
  double sum = 0;
  for (int i = 0; i < k; ++i) {
    const auto e = static_cast<size_t>(out.ids[static_cast<size_t>(i)]);
    const bool soft = method == Method::renormalize || method == Method::renormalize_naive;
    const bool logit = method == Method::topk;
    term[static_cast<size_t>(i)] = soft                        ? std::exp(x[e] - x[static_cast<size_t>(out.ids[0])])
                                   : logit                     ? x[e]
                                   : method == Method::softmax ? key[e]
                                                               : sig[e];
    sum += term[static_cast<size_t>(i)];
  }
  for (double t : term) {
    double w = t;
    if (method == Method::renormalize || method == Method::renormalize_naive) w = t / sum;
    if (method == Method::sigmoid_renorm && p.renormalize) w = t / std::max(sum, 1e-20);
    if (method == Method::minimax2 || method == Method::deepseek_v3) w = t * p.scale / (sum + 1e-20);
    out.weights.push_back(w);
  }
  // A float32 term is within 3 half-ulps of 1 (one tanh or exp, one sum).
  constexpr double term_error = 2e-7;
  const bool divided = method == Method::minimax2 || method == Method::deepseek_v3 ||
                       (method == Method::sigmoid_renorm && p.renormalize);
  out.weight_error = method == Method::topk ? 0 : term_error;
  if (soft_key) out.weight_error += experts * 0x1p-24 * out.weights[0];  // the sum over all experts
  if (divided) out.weight_error = std::fabs(p.scale) * (1 + k) * term_error / std::max(sum, 1e-20);
  if (method == Method::renormalize || method == Method::renormalize_naive) out.weight_error = (1 + k) * term_error;
  return out;
}

}  // namespace sluice::test
