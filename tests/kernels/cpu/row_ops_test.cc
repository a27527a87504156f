// SPDX-License-Identifier: Apache-2.0
// The row operations of every instruction set on results: activations against double precision, the weighted sum and
// the rounding to bfloat16 against their definitions.
#include "tests/kernels/cpu/row_ops.h"

#include <random>

#include "activation/activations.h"
#include "kernels/cpu/cpu_kernel.h"
#include "tests/support/random.h"

namespace sluice::kernels::cpu {
namespace {

using format::Format;
using format::InputFormat;

TEST_P(RowOps, ActivationsMatchDouble) {
  const KernelTable& rows = *choose_cpu_kernel(GetParam(), Format::bf16, InputFormat::plain, DType::f32).row_ops;
  std::mt19937_64 rng = test::rng<std::mt19937_64>();
  std::normal_distribution<float> normal(0, 6);
  const activation::Params params[] = {{}, {1.702f, 1.0f, 7.0f}};
  for (const auto& act : activation::kActivations)
    for (const activation::Params& p : params) {
      if (&p != params && !activation::takes_params(act.value)) continue;
      std::vector<float> up(1003), gate(1003), out(1003, NAN);
      for (float& v : up) v = normal(rng);
      for (float& v : gate) v = normal(rng) * 4;
      const float specials[] = {0.0f,    -0.0f,  88.0f,  89.0f,   -88.0f, -104.0f,
                                -200.0f, 300.0f, 1e-30f, -1e-30f, 1e30f,  -1e30f};
      std::copy(std::begin(specials), std::end(specials), gate.begin());
      std::copy(std::begin(specials), std::end(specials), up.begin() + 50);
      ActivateArgs a;
      a.act = static_cast<ActivationCode>(act.value);
      a.up = up.data();
      a.gate = gate.data();
      a.out = out.data();
      a.cols = 1003;
      a.alpha = p.alpha;
      a.beta = p.beta;
      a.limit = p.limit;
      rows.activate(a);
      for (size_t i = 0; i < up.size(); ++i) {
        const double u = up[i], g = gate[i];
        const auto silu = [](double x, double s) { return x / (1 + std::exp(-s * x)); };
        const auto erf_gelu = [](double x) { return 0.5 * x * std::erfc(-x * std::sqrt(0.5)); };
        double want = u;
        switch (act.value) {
          case activation::Activation::swiglu:
            want = silu(std::min(g, double{p.limit}), p.alpha) *
                   (std::clamp(u, -double{p.limit}, double{p.limit}) + double{p.beta});
            break;
          case activation::Activation::silu:
            want = silu(u, 1);
            break;
          case activation::Activation::relu2:
            want = u > 0 ? u * u : 0;
            break;
          case activation::Activation::gelu:
            want = erf_gelu(u);
            break;
          case activation::Activation::geglu:
            want = u * erf_gelu(g);
            break;
          case activation::Activation::geglu_tanh:
            want = u * 0.5 * g * (1 + std::tanh(std::sqrt(2 / M_PI) * (g + 0.044715 * g * g * g)));
            break;
          default:
            break;
        }
        // exp of an argument that is itself rounded: |x| * 2^-24 relative, beside a few units in the last place. Below
        // 2^-100 results may be flushed, and so may an activation below the smallest normal number, before up
        // multiplies it: gelu(-14.4) * 1e30.
        const double x = activation::is_gated(act.value) ? g : u;
        const double argument = act.value == activation::Activation::geglu_tanh
                                    ? 2 * (std::abs(x) + 0.05 * std::abs(x * x * x))
                                    : std::abs(x) * 1.8 + x * x * 0.5;
        const double tolerance = std::abs(want) * std::exp2(-23) * (6 + std::min(argument, 1e6)) + std::exp2(-90) +
                                 (activation::is_gated(act.value) ? std::abs(u) * std::exp2(-126) : 0);
        if (std::isinf(static_cast<float>(want)))
          ASSERT_TRUE(std::isinf(out[i])) << act.name << " " << u << " " << g;
        else if (act.value == activation::Activation::geglu_tanh && g < -5)
          ASSERT_NEAR(out[i], want, 1e-6 * std::abs(u))
              << act.name << " " << u << " " << g;  // 1 + tanh cancels in the reference
        else
          ASSERT_NEAR(out[i], want, tolerance) << act.name << " " << u << " " << g;
      }
    }
}

TEST_P(RowOps, WeightedSumIsAChainOfFusedMultiplyAdds) {
  const KernelTable& rows = *choose_cpu_kernel(GetParam(), Format::bf16, InputFormat::plain, DType::f32).row_ops;
  std::mt19937_64 rng = test::rng<std::mt19937_64>();
  std::normal_distribution<float> normal;
  const int64_t n = 531;
  for (const bool bf16 : {false, true})
    for (const int count : {0, 1, 3, 8}) {
      std::vector<std::vector<float>> f(static_cast<size_t>(count));
      std::vector<std::vector<uint16_t>> b(static_cast<size_t>(count));
      std::vector<const void*> pointers(static_cast<size_t>(count));
      std::vector<float> weights(static_cast<size_t>(count));
      for (size_t r = 0; r < f.size(); ++r) {
        weights[r] = bf16 ? round_to_bf16(normal(rng)) : normal(rng);
        for (int64_t i = 0; i < n; ++i) f[r].push_back(bf16 ? round_to_bf16(normal(rng)) : normal(rng));
        for (const float v : f[r]) b[r].push_back(float_to_bf16(v));
        pointers[r] = bf16 ? static_cast<const void*>(b[r].data()) : f[r].data();
      }
      std::vector<float> out(static_cast<size_t>(n) + 1, NAN);
      WeightedSumArgs a;
      a.rows = pointers.data();
      a.weights = weights.data();
      a.count = count;
      a.bf16 = bf16;
      a.cols = n;
      a.out = out.data();
      rows.weighted_sum(a);
      for (int64_t i = 0; i < n; ++i) {
        float sum = 0;
        for (size_t r = 0; r < f.size(); ++r) sum = std::fma(weights[r], f[r][static_cast<size_t>(i)], sum);
        const float got =
            bf16 ? bf16_to_float(reinterpret_cast<const uint16_t*>(out.data())[i]) : out[static_cast<size_t>(i)];
        ASSERT_TRUE(same(got, bf16 ? round_to_bf16(sum) : sum)) << got << " " << sum;
      }
    }
}

TEST_P(RowOps, RoundsToBf16) {
  const KernelTable& rows = *choose_cpu_kernel(GetParam(), Format::bf16, InputFormat::plain, DType::f32).row_ops;
  std::mt19937_64 rng = test::rng<std::mt19937_64>();
  std::vector<float> in(100003);
  for (float& v : in) v = std::bit_cast<float>(static_cast<uint32_t>(rng()));
  in[0] = INFINITY;
  in[1] = NAN;
  in[2] = std::bit_cast<float>(0x3f808000u);  // a tie
  std::vector<uint16_t> out(in.size());
  rows.round_bf16(in.data(), out.data(), static_cast<int64_t>(in.size()));
  for (size_t i = 0; i < in.size(); ++i) ASSERT_EQ(out[i], float_to_bf16(in[i])) << in[i];
}

INSTANTIATE_TEST_SUITE_P(Isas, RowOps, testing::Values(Isa::scalar, Isa::avx2, Isa::avx512), name_of_isa);

}  // namespace
}  // namespace sluice::kernels::cpu
