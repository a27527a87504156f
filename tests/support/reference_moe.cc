// SPDX-License-Identifier: Apache-2.0
#include "tests/support/reference_moe.h"

#include <cmath>

namespace sluice::test {

namespace {

using activation::Activation;
using format::Format;
using format::InputFormat;

double round_to(DType d, double x) { return d == DType::bf16 ? to_bf16(x) : to_f32(x); }

struct ActParams {
  double alpha = 1, beta = 0, limit = INFINITY;
};

double act(Activation a, double up, double gate, const ActParams& p) {
  // 0.5 x (1 + tanh(u)) written so that it does not cancel.
  const auto gelu_tanh = [](double x) {
    return x / (1 + std::exp(-2 * 0.7978845608028654 * (x + 0.044715 * x * x * x)));
  };
  const auto gelu_erf = [](double x) { return 0.5 * x * std::erfc(-x / std::sqrt(2.0)); };
  switch (a) {
    case Activation::gelu:
      return gelu_erf(up);
    case Activation::silu:
      return up / (1 + std::exp(-up));
    case Activation::relu2:
      return up > 0 ? up * up : 0;
    case Activation::identity:
      return up;
    case Activation::geglu:
      return up * gelu_erf(gate);
    case Activation::geglu_tanh:
      return up * gelu_tanh(gate);
    case Activation::swiglu: {
      const double g = std::min(gate, p.limit), u = std::max(-p.limit, std::min(up, p.limit));
      return (u + p.beta) * g / (1 + std::exp(-p.alpha * g));
    }
  }
  return NAN;
}

// Relative error of a float32 evaluation, in half-ulps: the argument of the exponential is rounded, which counts as
// often as it is large; a few operations on top.
double act_error(Activation a, double up, double gate, const ActParams& p) {
  const bool gated = activation::is_gated(a);
  const double x = gated ? gate : up;
  double argument = 0;
  if (a == Activation::swiglu) argument = std::fabs(p.alpha * std::min(gate, p.limit));
  if (a == Activation::silu) argument = std::fabs(x);
  if (a == Activation::gelu || a == Activation::geglu) argument = x * x;
  if (a == Activation::geglu_tanh) argument = std::fabs(1.6 * (x + 0.045 * x * x * x));
  return 16 + 4 * std::min(argument, 104.0);
}

// h = act(u, g) over the corners of its arguments' intervals, plus its own error. Where exp overflows in float32 the
// result is 0 instead of about 1e-38 times the factors.
Bounded act_bounded(Activation a, const Bounded& u, const Bounded& g, const ActParams& p, const Arithmetic& m) {
  const double centre = act(a, u.value, g.value, p);
  double slack = 0;
  for (double du : {-u.slack, 0.0, u.slack})
    for (double dg : {-g.slack, 0.0, g.slack})
      slack = std::max(slack, std::fabs(act(a, u.value + du, g.value + dg, p) - centre));
  const double floor = 1e-37 * (1 + std::fabs(u.value)) * (1 + std::fabs(g.value) + std::fabs(p.beta));
  return {centre, slack + std::fabs(centre) * act_error(a, u.value, g.value, p) * m.unit + floor};
}

// y[n] = sum over k of x[k] * w[n, k], with the slack of x and of the sums.
std::vector<Bounded> multiply(const std::vector<Bounded>& x, const double* w, int64_t rows, const Arithmetic& m) {
  const size_t cols = x.size();
  std::vector<Bounded> y(static_cast<size_t>(rows));
  for (size_t n = 0; n < y.size(); ++n) {
    double sum = 0, magnitude = 0, slack = 0;
    for (size_t k = 0; k < cols; ++k) {
      const double wk = w[n * cols + k];
      sum += x[k].value * wk;
      magnitude += std::fabs(x[k].value * wk);
      slack += x[k].slack * std::fabs(wk);
    }
    y[n] = {sum, slack + (m.sum_error(static_cast<double>(cols)) + m.product_error) * magnitude};
  }
  return y;
}

double extra(const Tensor& t, int64_t i) { return t.empty() ? 0.0 : t.as<float>()[i]; }

std::vector<double> decoded(const weights::QuantTensor& w) {
  return w.codes.empty() ? std::vector<double>{} : reference_decode(w);
}

}  // namespace

std::vector<double> reference_decode(const weights::QuantTensor& w) {
  std::vector<double> out(static_cast<size_t>(w.experts * w.rows * w.cols));
  size_t i = 0;
  for (int64_t e = 0; e < w.experts; ++e)
    for (int64_t n = 0; n < w.rows; ++n)
      for (int64_t k = 0; k < w.cols; ++k, ++i) {
        const auto byte = [&](const Tensor& t, int64_t at) { return static_cast<const uint8_t*>(t.data())[at]; };
        const auto f32 = [&](const Tensor& t, int64_t at) { return static_cast<double>(t.as<float>()[at]); };
        const auto at = static_cast<int64_t>(i);
        switch (w.format) {
          case Format::bf16:
            out[i] = std::bit_cast<float>(static_cast<uint32_t>(w.codes.as<uint16_t>()[at]) << 16);
            break;
          case Format::fp8_tensor:
            out[i] = e4m3_value(byte(w.codes, at)) * f32(w.scales, e);
            break;
          case Format::fp8_channel:
            out[i] = e4m3_value(byte(w.codes, at)) * f32(w.scales, e * w.rows + n);
            break;
          case Format::fp8_block: {
            const int64_t down = (w.rows + 127) / 128, across = (w.cols + 127) / 128;
            out[i] = e4m3_value(byte(w.codes, at)) * f32(w.scales, (e * down + n / 128) * across + k / 128);
            break;
          }
          case Format::mxfp8:
            out[i] = e4m3_value(byte(w.codes, at)) * e8m0_value(byte(w.scales, at / 32));
            break;
          case Format::mxfp4:
            out[i] = e2m1_value(byte(w.codes, at / 2) >> (at % 2 * 4) & 15) * e8m0_value(byte(w.scales, at / 32));
            break;
          case Format::nvfp4:
            out[i] = e2m1_value(byte(w.codes, at / 2) >> (at % 2 * 4) & 15) * e4m3_value(byte(w.scales, at / 16)) *
                     f32(w.global, e);
            break;
        }
      }
  return out;
}

ReferenceMoe reference_moe(const MoeSpec& s, const weights::ExpertWeights& w, const std::vector<float>& hidden,
                           const std::vector<int32_t>& ids, const std::vector<float>& weights, Arithmetic m) {
  const auto h_count = static_cast<size_t>(s.hidden), i_count = static_cast<size_t>(s.inter);
  const auto k_count = static_cast<size_t>(s.top_k), tokens = hidden.size() / h_count;
  const std::vector<double> up = decoded(w.up), gate = decoded(w.gate), down = decoded(w.down);
  ReferenceMoe r;
  const size_t slots = tokens * k_count;
  r.up.resize(slots * i_count);
  if (s.gated()) r.gate.resize(slots * i_count);
  r.activated.resize(slots * i_count);
  r.down.resize(slots * h_count);

  for (size_t t = 0; t < tokens; ++t) {
    std::vector<Bounded> x(h_count);
    for (size_t i = 0; i < h_count; ++i) x[i] = {hidden[t * h_count + i], 0};
    round_bounded_row(s.inputs, x.data(), s.hidden, w.input_scale1);
    for (const Bounded& v : x) r.input.push_back(v.value);

    for (size_t k = 0; k < k_count; ++k) {
      const size_t slot = t * k_count + k;
      const int64_t e = ids[slot] - s.local_offset;
      r.local.push_back(e >= 0 && e < s.locals());
      if (!r.local.back()) continue;

      // GEMM1, bias, llama4's weight.
      const auto gemm1 = [&](const std::vector<double>& matrix, const Tensor& bias) {
        auto y = multiply(x, matrix.data() + e * s.inter * s.hidden, s.inter, m);
        if (s.fp8_block_trtllm) round_bounded_row(InputFormat::fp8_group, y.data(), s.inter, 1);
        for (size_t i = 0; i < i_count; ++i) {
          y[i].value += extra(bias, e * s.inter + static_cast<int64_t>(i));
          const double factor = s.weight_on_input ? weights[slot] : 1.0;
          y[i] = {y[i].value * factor, y[i].slack * std::fabs(factor) + 2 * m.unit * std::fabs(y[i].value * factor)};
        }
        return y;
      };
      const auto u = gemm1(up, w.bias_up);
      const auto g = s.gated() ? gemm1(gate, w.bias_gate) : std::vector<Bounded>(i_count);

      // Activation, and its rounding.
      ActParams p;
      if (!w.alpha.empty()) p.alpha = extra(w.alpha, e);
      if (!w.beta.empty()) p.beta = extra(w.beta, e);
      if (!w.limit.empty()) p.limit = extra(w.limit, e);
      std::vector<Bounded> a(i_count);
      for (size_t i = 0; i < i_count; ++i) {
        a[i] = act_bounded(s.act, u[i], g[i], p, m);
        if (s.inputs == InputFormat::plain || s.inputs == InputFormat::nvfp4_token)
          a[i] = through(a[i], [&](double v) { return round_to(s.dtype, v); });
      }
      round_bounded_row(s.inputs, a.data(), s.inter, w.input_scale2);

      // GEMM2, bias, rounding to the run's type.
      auto y = multiply(a, down.data() + e * s.hidden * s.inter, s.hidden, m);
      for (size_t i = 0; i < h_count; ++i) {
        y[i].value += extra(w.bias_down, e * s.hidden + static_cast<int64_t>(i));
        y[i].slack += m.unit * std::fabs(y[i].value);
        y[i] = through(y[i], [&](double v) { return round_to(s.dtype, v); });
      }
      std::copy(u.begin(), u.end(), r.up.begin() + static_cast<std::ptrdiff_t>(slot * i_count));
      if (s.gated()) std::copy(g.begin(), g.end(), r.gate.begin() + static_cast<std::ptrdiff_t>(slot * i_count));
      std::copy(a.begin(), a.end(), r.activated.begin() + static_cast<std::ptrdiff_t>(slot * i_count));
      std::copy(y.begin(), y.end(), r.down.begin() + static_cast<std::ptrdiff_t>(slot * h_count));
    }

    const auto push = [&](double value, double slack) {
      r.output.push_back(round_to(s.dtype, value));
      r.lowest.push_back(round_to(s.dtype, value - slack));
      r.highest.push_back(round_to(s.dtype, value + slack));
    };
    if (!s.finalize) {
      for (size_t i = t * k_count * h_count; i < (t + 1) * k_count * h_count; ++i)
        push(r.down[i].value, r.down[i].slack);
      continue;
    }
    for (size_t i = 0; i < h_count; ++i) {
      double sum = 0, slack = 0;
      for (size_t slot = t * k_count; slot < (t + 1) * k_count; ++slot) {
        if (!r.local[slot]) continue;
        const Bounded& y = r.down[slot * h_count + i];
        const double factor = s.weight_on_input ? 1.0 : weights[slot];
        sum += factor * y.value;
        slack += std::fabs(factor) * y.slack + static_cast<double>(k_count) * m.unit * std::fabs(factor * y.value);
      }
      push(sum, slack);
    }
  }
  return r;
}

}  // namespace sluice::test
