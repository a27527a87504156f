// SPDX-License-Identifier: Apache-2.0
// Experts applied to tokens in double precision straight from dequantised weights: the yardstick for weights that were
// cut, padded or stored in another order. Rows are rounded by format::round_row, as every backend rounds them.
#pragma once

#include <cmath>
#include <vector>

#include "activation/activations.h"
#include "format/quantize_rows.h"
#include "weights/expert_weights.h"

namespace sluice::weights {

inline double apply_activation(activation::Activation act, double up, double gate) {
  using activation::Activation;
  const auto gelu = [](double x) { return 0.5 * x * (1 + std::erf(x / std::sqrt(2.0))); };
  const auto silu = [](double x) { return x / (1 + std::exp(-x)); };
  switch (act) {
    case Activation::gelu:
      return gelu(up);
    case Activation::silu:
      return silu(up);
    case Activation::swiglu:
      return up * silu(gate);
    case Activation::geglu:
      return up * gelu(gate);
    case Activation::relu2:
      return up > 0 ? up * up : 0;
    case Activation::geglu_tanh:
      return up * 0.5 * gate * (1 + std::tanh(0.7978845608028654 * (gate + 0.044715 * gate * gate * gate)));
    case Activation::identity:
      return up;
  }
  return NAN;
}

// x [T, H]; ids [T, K] global expert numbers, weights [T, K]; experts [first, first + L) are in w. Returns [T, H].
inline std::vector<double> plain_moe(const ExpertWeights& w, activation::Activation act, format::InputFormat inputs,
                                     const std::vector<float>& x, const std::vector<int>& ids,
                                     const std::vector<double>& router, int64_t first) {
  const int64_t hidden = w.up.cols, inter = w.up.rows, tokens = static_cast<int64_t>(x.size()) / hidden;
  const int64_t top_k = static_cast<int64_t>(ids.size()) / tokens;
  const bool gated = !w.gate.codes.empty();
  const Tensor up = dequantize(w.up), down = dequantize(w.down), gate = gated ? dequantize(w.gate) : Tensor{};
  const auto bias = [](const Tensor& t, int64_t e, int64_t i) {
    return t.empty() ? 0.0 : static_cast<double>(t.as<float>()[e * t.dim(1) + i]);
  };
  const auto dot = [](const float* a, const float* b, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; ++i) sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
    return sum;
  };
  std::vector<double> y(x.size(), 0.0);
  for (int64_t t = 0; t < tokens; ++t) {
    std::vector<float> row(x.begin() + t * hidden, x.begin() + (t + 1) * hidden);
    format::round_row(inputs, row.data(), hidden, w.input_scale1);
    for (int64_t k = 0; k < top_k; ++k) {
      const int64_t e = ids[t * top_k + k] - first;
      if (e < 0 || e >= w.up.experts) continue;
      std::vector<float> h(static_cast<size_t>(inter));
      for (int64_t i = 0; i < inter; ++i) {
        const int64_t at = (e * inter + i) * hidden;
        const double u = dot(up.as<float>() + at, row.data(), hidden) + bias(w.bias_up, e, i);
        const double g = gated ? dot(gate.as<float>() + at, row.data(), hidden) + bias(w.bias_gate, e, i) : 0;
        h[i] = static_cast<float>(apply_activation(act, u, g));
      }
      format::round_row(inputs, h.data(), inter, w.input_scale2);
      for (int64_t c = 0; c < hidden; ++c)
        y[t * hidden + c] +=
            router[t * top_k + k] *
            (dot(down.as<float>() + (e * hidden + c) * inter, h.data(), inter) + bias(w.bias_down, e, c));
    }
  }
  return y;
}

}  // namespace sluice::weights
