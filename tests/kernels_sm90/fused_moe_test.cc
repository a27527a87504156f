// SPDX-License-Identifier: Apache-2.0
// The sm90 backend against the CPU backend on fresh random data: the norm of the difference.
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <cstring>
#include <random>

#include "kernels/sm90/device.h"
#include "kernels/sm90/fused_moe/fused_moe.h"
#include "moe/backend_cpu.h"
#include "moe/backend_sm90.h"
#include "routing/route.h"
#include "tests/support/random.h"
#include "tests/support/reference_routing.h"
#include "weights/requantize.h"

namespace sluice {
namespace {

#define SKIP_WITHOUT_DEVICE() \
  if (const std::string problem = sm90::device_problem(); !problem.empty()) GTEST_SKIP() << problem

struct Problem {
  MoeSpec spec;
  weights::ExpertWeights w;
  Tensor hidden, logits, bias, ids, ids_weights;
};

Tensor random_tensor(std::mt19937_64& rng, DType d, Shape shape, float scale) {
  Tensor t(d, std::move(shape));
  std::normal_distribution<float> normal(0.0f, scale);
  std::uniform_real_distribution<float> uniform(0.0f, 1.0f);
  for (int64_t i = 0; i < t.elements(); ++i) {
    // Outliers: one value in 200 is 10 times as large.
    const float v = normal(rng) * (uniform(rng) < 0.005f ? 10.0f : 1.0f);
    if (d == DType::bf16)
      t.as<uint16_t>()[i] = float_to_bf16(v);
    else
      t.as<float>()[i] = v;
  }
  return t;
}

// Two right routings in float32 choose the same experts only where double precision tells the scores apart.
void draw_until_certain(Tensor& logits, const Tensor& bias, const MoeSpec& spec, std::mt19937_64& rng) {
  const auto doubles = [](const Tensor& t) {
    return t.empty() ? std::vector<double>() : std::vector<double>(t.as<float>(), t.as<float>() + t.elements());
  };
  for (int64_t t = 0; t < logits.dim(0); ++t) {
    Tensor row = logits.slice(t);
    while (!test::reference_route(spec.routing, spec.routing_params(), doubles(row), doubles(bias)).certain)
      std::memcpy(row.data(), random_tensor(rng, DType::f32, {spec.experts}, 1.5f).data(),
                  static_cast<size_t>(row.bytes()));
  }
}

Problem make_problem(Context& ctx, MoeSpec spec, int64_t tokens, uint64_t seed) {
  std::mt19937_64 rng(seed);
  Problem p;
  const auto stack = [&](int64_t rows, int64_t cols) {
    weights::QuantTensor q;
    q.format = format::Format::bf16;
    q.experts = spec.locals(), q.rows = rows, q.cols = cols;
    q.codes = random_tensor(rng, DType::bf16, {spec.locals(), rows, cols}, 1.0f / std::sqrt(static_cast<float>(cols)));
    return q;
  };
  p.w.up = stack(spec.inter, spec.hidden);
  if (spec.gated()) p.w.gate = stack(spec.inter, spec.hidden);
  p.w.down = stack(spec.hidden, spec.inter);
  if (spec.weights != format::Format::bf16) p.w = weights::quantize(ctx, spec.weights, p.w);
  const bool nvfp4 = spec.inputs == format::InputFormat::nvfp4;
  if (nvfp4 || spec.inputs == format::InputFormat::fp8_static) {
    p.w.input_scale1 = 4.5f / (nvfp4 ? 448.0f * 6.0f : 448.0f);
    p.w.input_scale2 = 7.0f / (nvfp4 ? 448.0f * 6.0f : 448.0f);
  }
  if (spec.bias) {
    p.w.bias_up = random_tensor(rng, DType::f32, {spec.locals(), spec.inter}, 0.3f);
    if (spec.gated()) p.w.bias_gate = random_tensor(rng, DType::f32, {spec.locals(), spec.inter}, 0.3f);
    p.w.bias_down = random_tensor(rng, DType::f32, {spec.locals(), spec.hidden}, 0.3f);
  }
  if (spec.act_params) {
    const auto fill = [&](Tensor& t, float v) {
      t = Tensor(DType::f32, {spec.locals()});
      for (int64_t i = 0; i < spec.locals(); ++i) t.as<float>()[i] = v;
    };
    fill(p.w.alpha, 1.702f);
    fill(p.w.beta, 1.0f);
    fill(p.w.limit, 1.5f);
  }
  p.hidden = random_tensor(rng, spec.dtype, {tokens, spec.hidden}, 1.0f);
  p.logits = random_tensor(rng, DType::f32, {tokens, spec.experts}, 1.5f);
  if (routing::takes_bias(spec.routing)) p.bias = random_tensor(rng, DType::f32, {spec.experts}, 0.2f);
  if (!spec.routed) draw_until_certain(p.logits, p.bias, spec, rng);
  if (spec.routed) {
    p.ids = Tensor(DType::i32, {tokens, spec.top_k});
    p.ids_weights = random_tensor(rng, DType::f32, {tokens, spec.top_k}, 0.3f);
    for (int64_t i = 0; i < p.ids.elements(); ++i)
      p.ids.as<int32_t>()[i] = rng() % 11 == 0 ? -1 : static_cast<int32_t>(rng() % static_cast<uint64_t>(spec.experts));
  }
  p.spec = spec;
  return p;
}

struct Result {
  Tensor output, ids, weights;
};

Result run(Context& ctx, const moe::Backend& backend, const Problem& p, int64_t tokens, int repeats = 1) {
  const auto layer = backend.prepare(ctx, p.spec, p.w);
  Result r;
  const MoeSpec& s = p.spec;
  r.output = s.finalize ? Tensor(s.dtype, {tokens, s.hidden}) : Tensor(s.dtype, {tokens, s.top_k, s.hidden});
  std::memset(r.output.data(), 0xff, static_cast<size_t>(r.output.bytes()));
  r.ids = Tensor(DType::i32, {tokens, s.top_k});
  r.weights = Tensor(DType::f32, {tokens, s.top_k});
  Tensor workspace(DType::u8, {layer->workspace_bytes(tokens) + 64});
  moe::MoeArgs a;
  a.tokens = tokens;
  a.hidden = p.hidden.data();
  a.logits = s.routed ? nullptr : p.logits.data();
  a.logits_dtype = DType::f32;
  a.bias = p.bias.empty() ? nullptr : p.bias.data();
  if (s.routed) {
    a.topk_ids = p.ids.as<int32_t>();
    a.topk_weights = p.ids_weights.data();
  }
  a.output = r.output.data();
  a.workspace = workspace.data();
  a.workspace_size = workspace.bytes();
  a.chosen_ids = r.ids.as<int32_t>();
  a.chosen_weights = r.weights.as<float>();
  Tensor first;
  for (int i = 0; i < repeats; ++i) {
    a.follows_own = i == 0;  // of how kernels are launched alone
    layer->run(ctx, a);
    if (i == 0) first = r.output.clone();
    EXPECT_EQ(0, std::memcmp(first.data(), r.output.data(), static_cast<size_t>(first.bytes()))) << "run " << i;
  }
  return r;
}

float value(const Tensor& t, int64_t i) {
  return t.dtype() == DType::bf16 ? bf16_to_float(t.as<uint16_t>()[i]) : t.as<float>()[i];
}

// ||a - b|| / ||b||, NaN if anything is not finite.
double relative_error(const Tensor& a, const Tensor& b) {
  double d = 0, n = 0;
  for (int64_t i = 0; i < a.elements(); ++i) {
    const double x = value(a, i), y = value(b, i);
    d += (x - y) * (x - y);
    n += y * y;
  }
  return n == 0 ? std::sqrt(d) : std::sqrt(d / n);
}

// Both sides make the same roundings, of sums that were added in another order. A sum that sits at a rounding boundary
// flips one code by one step: 2^-3 of the value in e4m3, up to 1/3 in e2m1, 2^-8 in bf16. Of few rows the largest value
// may be the one that flips, so the bound is a fraction of the format's own rms rounding error (2.6 % in e4m3, 9 % in
// e2m1). FP8 tensor cores err by up to 2^-10 of the magnitudes, here 0.8 % of a sum (96 terms: sqrt(96) * 0.8 times
// it), where steps are 9 % wide: in either factor of swiglu 9 % of the codes may flip, and sqrt(2 * 0.09) * 9 % = 3.8
// % of many codes. The share of flipped squares of n values has a standard deviation of sqrt(kurtosis / (n * 0.18)) of
// itself, and a product of two normal values has a kurtosis of 9; four of them are allowed. One token, one expert here
// of 32 columns: 9.3 % (4.6 % seen).
// With fp8_f32_sums they are as rare as in mxfp8 (6e-4 seen).
// fp8_block_trtllm rounds once more before the activation, and relu2 doubles that error: sqrt(2 * 2 + 1) * 3.8 %.
double bound(const MoeSpec& s, int64_t tokens) {
  using format::InputFormat;
  if (s.fp8_block_trtllm) return 8.5e-2;
  if (s.fp8_f32_sums) return 1e-2;
  switch (s.inputs) {
    case InputFormat::plain:
      return 3e-3;
    case InputFormat::nvfp4:
    case InputFormat::nvfp4_token:
      return 2e-2;
    case InputFormat::mxfp8:
      return 1e-2;
    default: {
      const double values = static_cast<double>(tokens * std::min<int64_t>(s.top_k, s.locals()) * s.inter);
      return 3.8e-2 * std::sqrt(1 + 4 * std::sqrt(9 / (values * 0.18)));
    }
  }
}

void check_case(const std::string& line, int64_t tokens, uint64_t seed) {
  ThreadPool pool(2);
  Context ctx{pool};
  const MoeSpec spec = parse_moe_spec(line);
  validate(spec);
  const Problem p = make_problem(ctx, spec, tokens, seed);
  const Result want = run(ctx, *moe::make_cpu_backend(), p, tokens);
  const Result got = run(ctx, *moe::make_sm90_backend(), p, tokens, 2);
  const double error = relative_error(got.output, want.output);
  std::printf("%-7s T=%-4lld err %.2e  %s\n", error <= bound(spec, tokens) ? "ok" : "FAIL",
              static_cast<long long>(tokens), error, line.c_str());
  std::fflush(stdout);
  EXPECT_LE(error, bound(spec, tokens)) << line << " T=" << tokens;
  EXPECT_TRUE(std::isfinite(error)) << line << " T=" << tokens;
  if (!spec.routed) {
    EXPECT_EQ(0, std::memcmp(got.ids.data(), want.ids.data(), static_cast<size_t>(got.ids.bytes()))) << line;
  }
}

std::string base(const std::string& rest) { return "experts=16 top_k=4 hidden=256 inter=128 " + rest; }

const std::string kFormats[] = {"weights=bf16 inputs=plain",
                                "weights=fp8_tensor inputs=fp8_token",
                                "weights=fp8_tensor inputs=fp8_static",
                                "weights=fp8_channel inputs=fp8_token",
                                "weights=fp8_block inputs=fp8_group",
                                "weights=fp8_tensor inputs=fp8_token fp8_f32_sums=1",
                                "weights=fp8_tensor inputs=fp8_static fp8_f32_sums=1",
                                "weights=fp8_block inputs=fp8_group fp8_f32_sums=1",
                                "weights=mxfp8 inputs=mxfp8",
                                "weights=nvfp4 inputs=nvfp4",
                                "weights=nvfp4 inputs=nvfp4_token",
                                "weights=mxfp4 inputs=plain",
                                "weights=mxfp4 inputs=mxfp8",
                                "weights=nvfp4 inputs=plain"};

TEST(FusedMoe, EveryFormatAtSeveralTokenCounts) {
  SKIP_WITHOUT_DEVICE();
  uint64_t seed = test::seed();
  for (const auto& f : kFormats)
    for (int64_t t : {1, 7, 96, 400})
      for (const char* act : {"swiglu", "relu2"}) check_case(base(f + " act=" + act), t, ++seed);
}

TEST(FusedMoe, Activations) {
  SKIP_WITHOUT_DEVICE();
  uint64_t seed = test::seed() + 1000;
  for (const char* act : {"gelu", "silu", "swiglu", "geglu", "relu2", "geglu_tanh", "identity"})
    for (const auto& f : kFormats) check_case(base(f + " act=" + act), 9, ++seed);
}

TEST(FusedMoe, RoutingMethods) {
  SKIP_WITHOUT_DEVICE();
  uint64_t seed = test::seed() + 2000;
  for (const char* m : {"softmax", "renormalize", "deepseek_v3", "renormalize_naive", "topk", "sigmoid_renorm",
                        "minimax2", "sigmoid", "topk_sigmoid"})
    for (int64_t t : {1, 33, 300}) check_case(base(std::string("routing=") + m), t, ++seed);
  check_case("experts=64 top_k=6 hidden=256 inter=128 routing=deepseek_v3 groups=8 top_groups=4 routed_scale=2.5", 65,
             ++seed);
  check_case("experts=512 top_k=22 hidden=128 inter=64 routing=deepseek_v3 routed_scale=5", 40, ++seed);
  check_case("experts=16 top_k=1 hidden=256 inter=128 routing=llama4", 21, ++seed);
  check_case(
      "experts=16 top_k=1 hidden=256 inter=128 weights=fp8_tensor inputs=fp8_token routing=llama4 weight_on_input=1",
      21, ++seed);
}

// One launch up to some tokens, two up to some thousand pairs, three beyond; experts of a lane in registers and not.
TEST(FusedMoe, ExpertsAndTokensOfEveryPathOfRouting) {
  SKIP_WITHOUT_DEVICE();
  uint64_t seed = test::seed() + 5000;
  for (const char* shape :
       {"experts=128 top_k=8", "experts=128 top_k=6 routing=deepseek_v3", "experts=7 top_k=7",
        "experts=256 top_k=8 routing=deepseek_v3 groups=8 top_groups=4 routed_scale=2.5",
        "experts=90 top_k=9 routing=deepseek_v3 groups=3 top_groups=2", "experts=512 top_k=22 routing=softmax",
        "experts=300 top_k=40 routing=renormalize", "experts=600 top_k=5 routing=sigmoid_renorm",
        "experts=128 top_k=8 local_offset=31 local_experts=40"})
    for (int64_t t : {1, 2, 16, 17, 63, 130}) check_case(std::string(shape) + " hidden=96 inter=32", t, ++seed);
  check_case("experts=128 top_k=8 hidden=128 inter=64", 513, ++seed);
  check_case("experts=128 top_k=8 hidden=160 inter=64 local_offset=120 local_experts=3 finalize=0", 1, ++seed);
  for (const auto& f : kFormats) {
    check_case("experts=40 top_k=6 hidden=288 inter=96 " + f, 1, ++seed);
    // Given ids repeat; long rows: weights are streamed before the tables are there.
    for (const char* hidden : {"hidden=288", "hidden=4096"})
      for (const char* experts : {"experts=3 top_k=3", "experts=2 top_k=2 local_experts=1", "experts=4 top_k=4"})
        check_case(fmt::format("{} {} inter=32 routed=1 {}", experts, hidden, f), 1, ++seed);
    check_case("experts=30 top_k=30 hidden=160 inter=32 routed=1 " + f, 1, ++seed);
  }
}

// The gather leaves the scales of tokens, and another kernel places them (tuning::kPlacedScales).
TEST(FusedMoe, ScalesOfManyRows) {
  SKIP_WITHOUT_DEVICE();
  uint64_t seed = test::seed() + 7000;
  const std::string shape = "experts=32 top_k=8 hidden=4064 inter=64 weights=fp8_block inputs=fp8_group";
  for (const char* more : {"", " fp8_f32_sums=1", " routed=1"}) check_case(shape + more, 2050, ++seed);
  check_case(shape + " local_offset=3 local_experts=20", 3300, ++seed);
}

TEST(FusedMoe, Sizes) {
  SKIP_WITHOUT_DEVICE();
  uint64_t seed = test::seed() + 3000;
  for (const auto& f : kFormats)
    for (const char* size :
         {"hidden=288 inter=224", "hidden=320 inter=704", "hidden=672 inter=480", "hidden=96 inter=64"})
      for (const char* act : {"swiglu", "relu2"}) {
        if (f.find("fp8_block") != std::string::npos && std::string(size).find("96") != std::string::npos) continue;
        check_case("experts=8 top_k=2 " + std::string(size) + " " + f + " act=" + act, 19, ++seed);
      }
}

// Two launches that stream weights (one_token/): small layers of every format go there. Here what they ask of these.
TEST(FusedMoe, OneToken) {
  SKIP_WITHOUT_DEVICE();
  uint64_t seed = test::seed() + 6000;
  for (const auto& f : kFormats) {
    check_case(base(f + " bias=1 act_params=1"), 1, ++seed);
    check_case(base(f + " bias=1 act=relu2 finalize=0"), 1, ++seed);
    if (f.find("plain") == std::string::npos) check_case(base(f + " dtype=float32"), 1, ++seed);
    // K that ends within a k-block, an odd number of k-blocks, columns that do not fill their groups of rows.
    check_case("experts=8 top_k=3 hidden=352 inter=224 " + f, 1, ++seed);
    // A cluster for each 16 columns; a block for each; two blocks and more per multiprocessor.
    for (const char* size :
         {"hidden=1024 inter=352", "hidden=2048 inter=320", "hidden=2880 inter=192", "hidden=7168 inter=96"})
      check_case(fmt::format("experts=9 top_k=8 {} {}", size, f), 1, ++seed);
  }
  for (const char* act : {"gelu", "silu", "swiglu", "geglu", "relu2", "geglu_tanh", "identity"})
    check_case(base(std::string("act=") + act), 1, ++seed);
  for (const char* weights : {"weights=bf16", "weights=fp8_tensor inputs=fp8_static", "weights=mxfp8 inputs=mxfp8"})
    check_case(fmt::format("experts=16 top_k=1 hidden=256 inter=128 {} routing=llama4 weight_on_input=1", weights), 1,
               ++seed);
  // More weights than the second kernel's rings hold.
  check_case("experts=2 top_k=2 hidden=2240 inter=4096", 1, ++seed);
  check_case("experts=4 top_k=4 hidden=1040 inter=2048 weights=nvfp4 inputs=nvfp4_token", 1, ++seed);
}

// A NaN score must not get lost among those of its group (docs/numerics.md, Routing).
TEST(FusedMoe, ANanScoreIsChosenFirst) {
  SKIP_WITHOUT_DEVICE();
  ThreadPool pool(2);
  Context ctx{pool};
  for (const int64_t tokens : {1, 5, 300})  // by each of the kernels that choose
    for (const char* shape : {"experts=32 top_k=4 groups=8 top_groups=2", "experts=24 top_k=3 groups=3 top_groups=2",
                              "experts=16 top_k=4 groups=16 top_groups=8"}) {
      const MoeSpec spec = parse_moe_spec(std::string(shape) + " hidden=128 inter=64 routing=deepseek_v3");
      Problem p = make_problem(ctx, spec, tokens, test::seed() + 7000);
      for (int64_t t = 0; t < tokens; ++t) p.logits.as<float>()[t * spec.experts + t * 7 % spec.experts] = NAN;
      const Result got = run(ctx, *moe::make_sm90_backend(), p, tokens, 2);
      for (int64_t t = 0; t < tokens; ++t)
        ASSERT_EQ(got.ids.as<int32_t>()[t * spec.top_k], t * 7 % spec.experts) << shape << " T=" << tokens;
    }
}

TEST(FusedMoe, EdgeCases) {
  SKIP_WITHOUT_DEVICE();
  uint64_t seed = test::seed() + 4000;
  for (const auto& f : kFormats) {
    check_case(base(f + " routed=1"), 33, ++seed);
    check_case(base(f + " routed=1 finalize=0"), 33, ++seed);
    check_case("experts=16 top_k=4 hidden=256 inter=128 local_offset=4 local_experts=8 " + f, 50, ++seed);
    check_case("experts=1 top_k=1 hidden=256 inter=128 " + f, 700, ++seed);
    check_case("experts=16 top_k=1 hidden=256 inter=128 " + f, 3, ++seed);
    if (f.find("plain") == std::string::npos) check_case(base(f + " dtype=float32"), 12, ++seed);
    // Long rows: with given ids weights are streamed before the tables are there.
    check_case("experts=16 top_k=4 hidden=4096 inter=128 routed=1 " + f, 5, ++seed);
    check_case("experts=40 top_k=6 hidden=4224 inter=160 local_offset=7 local_experts=21 routed=1 " + f, 70, ++seed);
    check_case("experts=2 top_k=1 hidden=4096 inter=128 routed=1 " + f, 90, ++seed);
    check_case(base(f + " bias=1"), 12, ++seed);
    check_case(base(f + " bias=1 act_params=1"), 12, ++seed);
  }
  // Tables by every block: its shared memory at the size that needs no attribute.
  check_case("experts=560 top_k=8 hidden=128 inter=64 routed=1", 64, ++seed);
  // The most pairs of that, and more: numbered by the warps of a cluster, fewer where there are many experts.
  for (int64_t tokens : {64, 65, 256, 257})
    check_case("experts=96 top_k=8 hidden=128 inter=64 routed=1", tokens, ++seed);
  check_case("experts=1500 top_k=8 hidden=128 inter=64 routed=1", 300, ++seed);
  check_case("experts=1500 top_k=8 hidden=128 inter=64 local_offset=20 local_experts=900", 500, ++seed);
  check_case("experts=900 top_k=16 hidden=4096 inter=32 routed=1", 64, ++seed);
  check_case(base("weights=fp8_block inputs=fp8_group fp8_block_trtllm=1"), 40, ++seed);
  check_case(base("weights=fp8_block inputs=fp8_group fp8_block_trtllm=1 act=relu2"), 3, ++seed);
}

}  // namespace
}  // namespace sluice
