// SPDX-License-Identifier: Apache-2.0
// Random weights: ranges, moments, and that nothing but name and index decides.
#include "weights/dummy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/bf16.h"
#include "base/error.h"

namespace sluice::weights {
namespace {

std::vector<double> values(std::string_view name, const Shape& shape, DType dtype = DType::f32) {
  ThreadPool pool(2);
  const Tensor t = dummy_tensor(pool, name, dtype, shape);
  EXPECT_EQ(t.shape(), shape);
  std::vector<double> out;
  for (int64_t i = 0; i < t.elements(); ++i)
    out.push_back(dtype == DType::f32 ? t.as<float>()[i] : bf16_to_float(t.as<uint16_t>()[i]));
  return out;
}

TEST(Dummy, MatricesKeepTheVariance) {
  for (const DType dtype : {DType::bf16, DType::f32}) {
    const int64_t rows = 300, cols = 512;
    const std::vector<double> w = values("model.layers.0.mlp.experts.gate_up_proj", {2, rows / 2, cols}, dtype);
    double sum = 0, squares = 0;
    for (const double x : w) sum += x, squares += x * x;
    const auto n = static_cast<double>(w.size());
    // Of uniform values in +-sqrt(3/cols): six standard errors of the mean and of the variance (kurtosis 9/5), and
    // BF16's half ulp.
    EXPECT_NEAR(sum / n, 0, 6 / std::sqrt(n * cols) + 0x1p-9 / std::sqrt(cols));
    EXPECT_NEAR(squares / n * cols, 1, 6 * std::sqrt(0.8 / n) + 0x1p-8);
    EXPECT_LE(*std::max_element(w.begin(), w.end()), std::sqrt(3.0 / cols) * (1 + 0x1p-8));
  }
}

TEST(Dummy, NamesDecideTheRange) {
  struct Case {
    std::string_view name;
    double low, high;
  };
  for (const Case& c :
       {Case{"model.norm.weight", 0.9, 1.1}, Case{"model.layers.3.self_attn.kv_a_layernorm.weight", 0.9, 1.1},
        Case{"model.layers.61.enorm.weight", 0.9, 1.1}, Case{"backbone.norm_f.weight", 0.9, 1.1},
        Case{"backbone.layers.0.mixer.A_log", 0, std::log(16.0)}, Case{"backbone.layers.0.mixer.D", 1, 1},
        Case{"backbone.layers.0.mixer.dt_bias", std::log(std::expm1(0.001)), std::log(std::expm1(0.1))},
        Case{"model.layers.3.mlp.gate.e_score_correction_bias", -0.02, 0.02},
        Case{"model.layers.3.self_attn.q_proj.bias", -0.02, 0.02},
        Case{"model.normal.layers.3.self_attn.q_proj.weight", -std::sqrt(3 / 500.0), std::sqrt(3 / 500.0)}}) {
    const std::vector<double> v = values(c.name, {500});
    const auto [low, high] = std::minmax_element(v.begin(), v.end());
    const double width = c.high - c.low, slack = 1e-5 * (1 + std::fabs(c.low));
    EXPECT_GE(*low, c.low - slack) << c.name;
    EXPECT_LE(*high, c.high + slack) << c.name;
    EXPECT_LE(*low, c.low + 0.1 * width + slack) << c.name;
    EXPECT_GE(*high, c.high - 0.1 * width - slack) << c.name;
  }
}

TEST(Dummy, DependsOnNameAndIndexAlone) {
  const Shape shape{3, 70001};  // several pieces, the last one short
  ThreadPool one(1), three(3);
  const Tensor a = dummy_tensor(one, "a.weight", DType::bf16, shape);
  const Tensor again = dummy_tensor(three, "a.weight", DType::bf16, shape);
  const Tensor other = dummy_tensor(three, "b.weight", DType::bf16, shape);
  EXPECT_EQ(std::memcmp(a.data(), again.data(), static_cast<size_t>(a.bytes())), 0);
  EXPECT_NE(std::memcmp(a.data(), other.data(), static_cast<size_t>(a.bytes())), 0);
  EXPECT_THROW(dummy_tensor(one, "a.weight", DType::u8, shape), Error);
}

}  // namespace
}  // namespace sluice::weights
