// SPDX-License-Identifier: Apache-2.0
// Random canonical weights made of valid codes and scales, without any quantiser, and comparisons.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "tests/support/random.h"
#include "weights/expert_weights.h"

namespace sluice::weights {

struct Random {
  std::mt19937 engine = test::rng();
  int64_t integer(int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(engine); }
  float uniform(float low, float high) { return std::uniform_real_distribution<float>(low, high)(engine); }
  float normal() { return std::normal_distribution<float>()(engine); }
};

inline Tensor random_floats(Random& random, Shape shape, float low = -1.0f, float high = 1.0f) {
  Tensor t(DType::f32, std::move(shape));
  for (int64_t i = 0; i < t.elements(); ++i) t.as<float>()[i] = random.uniform(low, high);
  return t;
}

inline Tensor random_bf16(Random& random, Shape shape) {
  Tensor t(DType::bf16, std::move(shape));
  for (int64_t i = 0; i < t.elements(); ++i) t.as<uint16_t>()[i] = float_to_bf16(random.normal());
  return t;
}

inline void fill_random(Random& random, QuantTensor& w) {
  switch (info(w.format).bits) {
    case 16:
      for (int64_t i = 0; i < w.codes.elements(); ++i)
        w.codes.as<uint16_t>()[i] = float_to_bf16(random.normal() * 0.1f);
      return;
    case 8:
      for (int64_t i = 0; i < w.codes.elements(); ++i)
        w.codes.as<uint8_t>()[i] = static_cast<uint8_t>(random.integer(0, 126) | random.integer(0, 1) << 7);
      break;
    default:
      for (int64_t i = 0; i < w.codes.elements(); ++i)
        w.codes.as<uint8_t>()[i] = static_cast<uint8_t>(random.integer(0, 255));
  }
  for (int64_t i = 0; i < w.scales.elements(); ++i) switch (w.scales.dtype()) {
      case DType::f32:
        w.scales.as<float>()[i] = random.uniform(0.0005f, 0.002f);
        break;
      case DType::e8m0:
        w.scales.as<uint8_t>()[i] = static_cast<uint8_t>(random.integer(115, 120));
        break;
      default:
        w.scales.as<uint8_t>()[i] = static_cast<uint8_t>(random.integer(1, 126));
    }
  for (int64_t i = 0; i < w.global.elements(); ++i) w.global.as<float>()[i] = random.uniform(0.0001f, 0.0005f);
}

inline QuantTensor random_quant(Random& random, format::Format format, int64_t experts, int64_t rows, int64_t cols) {
  QuantTensor w = make_quant_tensor(format, experts, rows, cols);
  fill_random(random, w);
  return w;
}

inline ExpertWeights random_experts(Random& random, format::Format format, int64_t experts, int64_t inter,
                                    int64_t hidden, bool gated, bool extras) {
  ExpertWeights w;
  w.up = random_quant(random, format, experts, inter, hidden);
  if (gated) w.gate = random_quant(random, format, experts, inter, hidden);
  w.down = random_quant(random, format, experts, hidden, inter);
  w.input_scale1 = 0.01f;
  w.input_scale2 = 0.02f;
  if (extras) {
    w.bias_up = random_floats(random, {experts, inter});
    if (gated) w.bias_gate = random_floats(random, {experts, inter});
    w.bias_down = random_floats(random, {experts, hidden});
  }
  return w;
}

inline bool same_bytes(const Tensor& a, const Tensor& b) {
  return a.empty() == b.empty() &&
         (a.empty() || (a.dtype() == b.dtype() && a.shape() == b.shape() &&
                        std::memcmp(a.data(), b.data(), static_cast<size_t>(a.bytes())) == 0));
}

inline bool same_bytes(const QuantTensor& a, const QuantTensor& b) {
  return a.format == b.format && a.experts == b.experts && a.rows == b.rows && a.cols == b.cols &&
         same_bytes(a.codes, b.codes) && same_bytes(a.scales, b.scales) && same_bytes(a.global, b.global);
}

inline bool same_bytes(const ExpertWeights& a, const ExpertWeights& b) {
  return same_bytes(a.up, b.up) && same_bytes(a.gate, b.gate) && same_bytes(a.down, b.down) &&
         a.input_scale1 == b.input_scale1 && a.input_scale2 == b.input_scale2 && same_bytes(a.bias_up, b.bias_up) &&
         same_bytes(a.bias_gate, b.bias_gate) && same_bytes(a.bias_down, b.bias_down) && same_bytes(a.alpha, b.alpha) &&
         same_bytes(a.beta, b.beta) && same_bytes(a.limit, b.limit);
}

// The sentence of the Error that `f` throws; "" and a failure when it throws none.
template <class F>
std::string error_of(F&& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  ADD_FAILURE() << "no error was thrown";
  return "";
}

}  // namespace sluice::weights
