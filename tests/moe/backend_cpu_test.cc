// SPDX-License-Identifier: Apache-2.0
// What the conformance suite does not ask of the CPU backend: a token's bits do not depend on its batch, nothing is
// allocated once warm, long calls, refit.
#include "moe/backend_cpu.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "format/quantize_weights.h"
#include "tests/support/counting_new.h"
#include "tests/support/random.h"

namespace sluice::moe {
namespace {

using format::Format;
using format::InputFormat;

weights::QuantTensor random_weights(std::mt19937_64& rng, Format f, int64_t experts, int64_t n, int64_t k) {
  std::normal_distribution<float> normal(0, 0.2f);
  weights::QuantTensor w = weights::make_quant_tensor(f, experts, n, k);
  std::vector<float> v(static_cast<size_t>(n * k));
  for (int64_t e = 0; e < experts; ++e) {
    for (float& x : v) x = normal(rng);
    format::quantize_weight(f, v.data(), n, k, w.codes.slice(e).data(),
                            w.scales.empty() ? nullptr : w.scales.rows(e, e + 1).data(),
                            w.global.empty() ? nullptr : w.global.as<float>() + e);
  }
  return w;
}

weights::ExpertWeights random_experts(std::mt19937_64& rng, const MoeSpec& s) {
  weights::ExpertWeights w;
  w.up = random_weights(rng, s.weights, s.locals(), s.inter, s.hidden);
  if (s.gated()) w.gate = random_weights(rng, s.weights, s.locals(), s.inter, s.hidden);
  w.down = random_weights(rng, s.weights, s.locals(), s.hidden, s.inter);
  w.input_scale1 = w.input_scale2 = 5.0f / (448 * 6);
  return w;
}

MoeSpec small_spec(Format f) {
  MoeSpec s;
  s.experts = 8;
  s.top_k = 3;
  s.hidden = 96;
  s.inter = 64;
  s.weights = f;
  s.inputs = info(f).input;
  return s;
}

struct Inputs {
  std::vector<uint16_t> hidden;
  std::vector<float> logits;
};

Inputs random_inputs(std::mt19937_64& rng, const MoeSpec& s, int64_t tokens) {
  std::normal_distribution<float> normal;
  Inputs in;
  for (int64_t i = 0; i < tokens * s.hidden; ++i) in.hidden.push_back(float_to_bf16(normal(rng)));
  for (int64_t i = 0; i < tokens * s.experts; ++i) in.logits.push_back(normal(rng));
  return in;
}

// Tokens [begin, end) of the inputs in one call.
std::vector<uint16_t> run(Context& ctx, const MoeLayer& layer, const Inputs& in, int64_t begin, int64_t end) {
  const MoeSpec& s = layer.spec();
  std::vector<uint16_t> out(static_cast<size_t>((end - begin) * s.hidden), 0xffff);
  Tensor workspace(DType::u8, {layer.workspace_bytes(end - begin)});
  std::memset(workspace.data(), 0xff, static_cast<size_t>(workspace.bytes()));
  MoeArgs a;
  a.tokens = end - begin;
  a.hidden = in.hidden.data() + begin * s.hidden;
  a.logits = in.logits.data() + begin * s.experts;
  a.logits_dtype = DType::f32;
  a.output = out.data();
  a.workspace = workspace.data();
  a.workspace_size = workspace.bytes();
  layer.run(ctx, a);
  return out;
}

TEST(CpuBackend, ATokensBitsDoNotDependOnItsBatch) {
  ThreadPool pool(2);
  Context ctx{pool};
  std::mt19937_64 rng = test::rng<std::mt19937_64>();
  for (const auto& isa : kernels::cpu::kIsas) {
    if (!kernels::cpu::supported(isa.value)) continue;
    const auto backend = make_cpu_backend({isa.value});
    for (const auto& f : format::kFormats) {
      SCOPED_TRACE(fmt::format("{} {}", isa.name, f.name));
      const MoeSpec s = small_spec(f.value);
      const auto layer = backend->prepare(ctx, s, random_experts(rng, s));
      const Inputs in = random_inputs(rng, s, 70);
      const std::vector<uint16_t> all = run(ctx, *layer, in, 0, 70);
      for (const auto& [begin, end] : {std::pair{0, 1}, {33, 34}, {69, 70}, {10, 12}, {20, 27}, {5, 60}}) {
        const std::vector<uint16_t> part = run(ctx, *layer, in, begin, end);
        ASSERT_EQ(0, std::memcmp(part.data(), all.data() + begin * s.hidden, part.size() * 2)) << begin << " " << end;
      }
    }
  }
}

TEST(CpuBackend, LongCallsRunInPieces) {
  ThreadPool pool(2);
  Context ctx{pool};
  std::mt19937_64 rng = test::rng<std::mt19937_64>();
  MoeSpec s = small_spec(Format::mxfp8);
  s.hidden = 32;
  s.inter = 32;
  const auto layer = make_cpu_backend()->prepare(ctx, s, random_experts(rng, s));
  const Inputs in = random_inputs(rng, s, 4500);
  EXPECT_EQ(layer->workspace_bytes(4500), layer->workspace_bytes(100000));
  const std::vector<uint16_t> all = run(ctx, *layer, in, 0, 4500), part = run(ctx, *layer, in, 2000, 2100);
  ASSERT_EQ(0, std::memcmp(part.data(), all.data() + 2000 * s.hidden, part.size() * 2));
}

TEST(CpuBackend, AllocatesNothingOnceWarm) {
  ThreadPool pool(2);
  Context ctx{pool};
  std::mt19937_64 rng = test::rng<std::mt19937_64>();
  for (const auto& f : format::kFormats) {
    const MoeSpec s = small_spec(f.value);
    const auto layer = make_cpu_backend()->prepare(ctx, s, random_experts(rng, s));
    const Inputs in = random_inputs(rng, s, 20);
    std::vector<uint16_t> out(static_cast<size_t>(20 * s.hidden));
    Tensor workspace(DType::u8, {layer->workspace_bytes(20)});
    MoeArgs a;
    a.hidden = in.hidden.data();
    a.logits = in.logits.data();
    a.logits_dtype = DType::f32;
    a.output = out.data();
    a.workspace = workspace.data();
    a.workspace_size = workspace.bytes();
    a.tokens = 20;
    layer->run(ctx, a);
    const int64_t before = allocations.load();
    for (const int64_t tokens : {1, 20, 7, 1}) {
      a.tokens = tokens;
      layer->run(ctx, a);
    }
    EXPECT_EQ(allocations.load(), before) << f.name;
  }
}

TEST(CpuBackend, RefitGivesTheBitsOfAFreshLayer) {
  ThreadPool pool(2);
  Context ctx{pool};
  std::mt19937_64 rng = test::rng<std::mt19937_64>();
  for (const auto& f : format::kFormats) {
    const MoeSpec s = small_spec(f.value);
    const auto first = random_experts(rng, s), second = random_experts(rng, s);
    const auto backend = make_cpu_backend();
    const auto layer = backend->prepare(ctx, s, first), fresh = backend->prepare(ctx, s, second);
    const Inputs in = random_inputs(rng, s, 9);
    EXPECT_NE(run(ctx, *layer, in, 0, 9), run(ctx, *fresh, in, 0, 9));
    layer->refit(ctx, second);
    EXPECT_EQ(run(ctx, *layer, in, 0, 9), run(ctx, *fresh, in, 0, 9)) << f.name;
  }
}

TEST(CpuBackend, NoTokens) {
  ThreadPool pool(1);
  Context ctx{pool};
  std::mt19937_64 rng = test::rng<std::mt19937_64>();
  const MoeSpec s = small_spec(Format::bf16);
  const auto layer = make_cpu_backend()->prepare(ctx, s, random_experts(rng, s));
  layer->run(ctx, MoeArgs{});
  EXPECT_GE(layer->workspace_bytes(0), 0);
}

TEST(CpuBackend, RefusesWithAReason) {
  const auto backend = make_cpu_backend();
  MoeSpec s = small_spec(Format::mxfp4);
  EXPECT_TRUE(backend->supports(s));
  s.inputs = InputFormat::fp8_group;
  EXPECT_NE(backend->supports(s).reason.find("fp8_block"), std::string::npos);
  s = small_spec(Format::bf16);
  s.act = activation::Activation::geglu;
  s.act_params = true;
  EXPECT_NE(backend->supports(s).reason.find("swiglu"), std::string::npos);
  s = small_spec(Format::bf16);
  s.fp8_block_trtllm = true;
  EXPECT_FALSE(backend->supports(s));
}

TEST(CpuBackend, SaysWhichWeightIsWrong) {
  ThreadPool pool(1);
  Context ctx{pool};
  std::mt19937_64 rng = test::rng<std::mt19937_64>();
  const MoeSpec s = small_spec(Format::bf16);
  weights::ExpertWeights w = random_experts(rng, s);
  w.down = random_weights(rng, Format::bf16, 8, 96, 32);
  try {
    make_cpu_backend()->prepare(ctx, s, w);
    FAIL() << "a wrong shape was accepted";
  } catch (const Error& e) {
    EXPECT_STREQ(e.what(), "the down weights are [8, 96, 32]; needed: [8, 96, 64]");
  }
}

}  // namespace
}  // namespace sluice::moe
