// SPDX-License-Identifier: Apache-2.0
// The layer through the shared library, against a definition in double precision, and every way to call it wrongly.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "sluice/sluice.hpp"
#include "tests/support/random.h"

namespace {

constexpr int64_t kE = 5, kK = 2, kH = 48, kI = 40, kT = 7;
const char* const kSpec =
    "experts=5 top_k=2 hidden=48 inter=40 weights=bf16 dtype=float32 act=swiglu routing=renormalize";

struct Problem {
  std::mt19937 random = sluice::test::rng();
  std::vector<uint16_t> up = weights(kE * kI * kH), gate = weights(kE * kI * kH), down = weights(kE * kH * kI);
  std::vector<float> hidden = floats(kT * kH, 1.0f), logits = floats(kT * kE, 2.0f);
  std::vector<float> output = std::vector<float>(kT * kH, std::numeric_limits<float>::quiet_NaN());

  std::vector<float> floats(int64_t count, float scale) {
    std::normal_distribution<float> normal(0.0f, scale);
    std::vector<float> v(static_cast<size_t>(count));
    for (float& x : v) x = normal(random);
    return v;
  }
  std::vector<uint16_t> weights(int64_t count) {
    std::vector<uint16_t> v;
    for (float x : floats(count, 0.3f)) v.push_back(static_cast<uint16_t>(std::bit_cast<uint32_t>(x) >> 16));
    return v;
  }
  sluice_moe_weights stacks() const {
    auto w = SLUICE_INIT(sluice_moe_weights);
    w.up.codes = up.data();
    w.gate.codes = gate.data();
    w.down.codes = down.data();
    return w;
  }
  sluice_moe_args args() {
    auto a = SLUICE_INIT(sluice_moe_args);
    a.tokens = kT;
    a.hidden = hidden.data();
    a.logits = logits.data();
    a.logits_dtype = SLUICE_F32;
    a.output = output.data();
    return a;
  }
};

double value(const std::vector<uint16_t>& w, int64_t i) {
  return std::bit_cast<float>(static_cast<uint32_t>(w[static_cast<size_t>(i)]) << 16);
}

// Output and, for the bound, the sum of the absolute values of everything that is added.
struct Expected {
  std::vector<double> output, magnitude;
};

Expected definition(const Problem& p) {
  Expected r{std::vector<double>(kT * kH), std::vector<double>(kT * kH)};
  for (int64_t t = 0; t < kT; ++t) {
    const float* logits = &p.logits[static_cast<size_t>(t * kE)];
    std::vector<int> order(kE);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return logits[a] > logits[b]; });
    double sum = 0;
    for (int k = 0; k < kK; ++k) sum += std::exp(static_cast<double>(logits[order[k]]));
    for (int k = 0; k < kK; ++k) {
      const int64_t e = order[static_cast<size_t>(k)];
      const double weight = std::exp(static_cast<double>(logits[e])) / sum;
      for (int64_t i = 0; i < kI; ++i) {
        double u = 0, g = 0;
        for (int64_t h = 0; h < kH; ++h) {
          const double x = p.hidden[static_cast<size_t>(t * kH + h)];
          u += x * value(p.up, (e * kI + i) * kH + h);
          g += x * value(p.gate, (e * kI + i) * kH + h);
        }
        const double a = u * g / (1 + std::exp(-g));
        for (int64_t h = 0; h < kH; ++h) {
          const double term = weight * a * value(p.down, (e * kH + h) * kI + i);
          r.output[static_cast<size_t>(t * kH + h)] += term;
          // u and g are sums of kH products themselves: their errors are relative to sums of absolute values, at most
          // sqrt(kH) times larger than |u| or |g| here but for unlucky cancellation; 8 covers it.
          r.magnitude[static_cast<size_t>(t * kH + h)] +=
              8 * std::abs(term) + weight * std::abs(value(p.down, (e * kH + h) * kI + i));
        }
      }
    }
  }
  return r;
}

void expect_definition(const Problem& p) {
  const Expected want = definition(p);
  const double unit = std::numeric_limits<float>::epsilon() / 2 * (kH + kI + 8);
  for (size_t i = 0; i < want.output.size(); ++i)
    ASSERT_NEAR(p.output[i], want.output[i], unit * want.magnitude[i]) << "element " << i;
}

TEST(CapiMoe, MatchesTheDefinition) {
  Problem p;
  sluice::Context context(2);
  const sluice::MoeLayer layer(context, kSpec, p.stacks());
  layer.run(p.args());
  expect_definition(p);
}

// The prepared weights lie in the caller's memory, all of them there and nothing beyond; a refit writes them again.
TEST(CapiMoe, PreparedMemoryOfTheCaller) {
  Problem p, other;
  sluice_context* context = nullptr;
  ASSERT_EQ(sluice_context_create(2, &context), SLUICE_OK);
  int64_t bytes = 0;
  ASSERT_EQ(sluice_moe_prepared_bytes(kSpec, &bytes), SLUICE_OK) << sluice_last_error();
  EXPECT_GE(bytes, 3 * kE * kI * kH * 2);
  std::vector<char> memory(static_cast<size_t>(bytes) + 192, '\x7f');
  const auto base = reinterpret_cast<uintptr_t>(memory.data());
  char* const aligned = memory.data() + (64 - base % 64);
  const auto weights = p.stacks(), others = other.stacks();
  sluice_moe* layer = nullptr;
  EXPECT_EQ(sluice_moe_prepare_into(context, kSpec, &weights, aligned, bytes - 1, &layer), SLUICE_INVALID_ARGUMENT);
  EXPECT_EQ(std::string(sluice_last_error()),
            "memory has " + std::to_string(bytes - 1) + " bytes; the prepared weights need " + std::to_string(bytes));
  EXPECT_EQ(sluice_moe_prepare_into(context, kSpec, &weights, aligned + 8, bytes, &layer), SLUICE_INVALID_ARGUMENT);
  EXPECT_STREQ(sluice_last_error(), "memory is not aligned to 64 bytes");
  EXPECT_EQ(sluice_moe_prepare_into(context, kSpec, &weights, nullptr, bytes, &layer), SLUICE_INVALID_ARGUMENT);
  EXPECT_EQ(sluice_moe_prepared_bytes("experts=1 top_k=2 hidden=8 inter=8", &bytes), SLUICE_INVALID_ARGUMENT);
  EXPECT_EQ(sluice_moe_prepared_bytes(kSpec, nullptr), SLUICE_INVALID_ARGUMENT);
  ASSERT_EQ(layer, nullptr);

  ASSERT_EQ(sluice_moe_prepare_into(context, kSpec, &weights, aligned, bytes, &layer), SLUICE_OK)
      << sluice_last_error();
  sluice_context_destroy(context);
  const auto args = p.args();
  ASSERT_EQ(sluice_moe_run(layer, &args), SLUICE_OK) << sluice_last_error();
  expect_definition(p);
  const std::vector<char> before(aligned, aligned + bytes);
  ASSERT_EQ(sluice_moe_refit(layer, &others), SLUICE_OK);
  EXPECT_NE(std::vector<char>(aligned, aligned + bytes), before);
  const auto more = other.args();
  ASSERT_EQ(sluice_moe_run(layer, &more), SLUICE_OK);
  expect_definition(other);
  ASSERT_EQ(sluice_moe_refit(layer, &weights), SLUICE_OK);
  EXPECT_EQ(std::vector<char>(aligned, aligned + bytes), before);
  sluice_moe_destroy(layer);
  {
    sluice::Context own(2);
    ASSERT_EQ(sluice::MoeLayer::prepared_bytes(kSpec), bytes);
    const sluice::MoeLayer wrapped(own, kSpec, weights, aligned, bytes);
    wrapped.run(p.args());
    expect_definition(p);
  }
  for (const char* c = memory.data(); c < aligned; ++c) EXPECT_EQ(*c, '\x7f');
  for (const char* c = aligned + bytes; c < memory.data() + memory.size(); ++c) EXPECT_EQ(*c, '\x7f');
}

TEST(CapiMoe, WorkspaceOfTheCaller) {
  Problem p;
  sluice::Context context(2);
  const sluice::MoeLayer layer(context, kSpec, p.stacks());
  std::vector<char> memory(static_cast<size_t>(layer.workspace_bytes(kT)) + 128, '\x7f');
  const auto base = reinterpret_cast<uintptr_t>(memory.data());
  auto args = p.args();
  args.workspace = memory.data() + ((base + 63) / 64 * 64 - base);
  args.workspace_size = layer.workspace_bytes(kT);
  layer.run(args);
  expect_definition(p);
  for (const int64_t size : {int64_t{0}, int64_t{-1}, args.workspace_size - 1}) {
    auto small = args;
    small.workspace_size = size;
    EXPECT_EQ(sluice_moe_run(layer.get(), &small), SLUICE_INVALID_ARGUMENT);
    EXPECT_EQ(std::string(sluice_last_error()), "workspace_size is " + std::to_string(size) +
                                                    "; a call of 7 tokens needs " +
                                                    std::to_string(args.workspace_size) + " bytes");
  }
  args.workspace = static_cast<char*>(args.workspace) + 4;
  EXPECT_THROW(layer.run(args), sluice::Error);
}

TEST(CapiMoe, RefitAndRoutedMode) {
  Problem first, second;
  sluice::Context context(1);
  sluice::MoeLayer layer(context, kSpec, first.stacks());
  layer.refit(second.stacks());
  layer.run(second.args());
  expect_definition(second);

  // The same routing given from outside: the ids and weights that the logits lead to.
  std::vector<int32_t> ids(kT * kK);
  std::vector<float> weights(kT * kK);
  auto args = second.args();
  args.chosen_ids = ids.data();
  args.chosen_weights = weights.data();
  layer.run(args);
  const sluice::MoeLayer routed(context, std::string(kSpec) + " routed=1", second.stacks());
  args = second.args();
  args.logits = nullptr;
  args.topk_ids = ids.data();
  args.topk_weights = weights.data();
  args.topk_weights_dtype = SLUICE_F32;
  const auto both = [&] {
    auto wrong = second.args();
    wrong.topk_ids = ids.data(), wrong.topk_weights = weights.data();
    return wrong;
  }();
  EXPECT_EQ(sluice_moe_run(routed.get(), &both), SLUICE_INVALID_ARGUMENT);
  EXPECT_STREQ(sluice_last_error(), "routing logits or a bias are given, but the spec says routed");
  EXPECT_EQ(sluice_moe_run(layer.get(), &both), SLUICE_INVALID_ARGUMENT);
  EXPECT_STREQ(sluice_last_error(), "top-k ids or weights are given, but the spec does not say routed");
  std::fill(second.output.begin(), second.output.end(), std::numeric_limits<float>::quiet_NaN());
  routed.run(args);
  expect_definition(second);
}

TEST(CapiMoe, ThreadsShareALayer) {
  Problem a, b;
  b.up = a.up, b.gate = a.gate, b.down = a.down;
  sluice::Context context(2);
  const sluice::MoeLayer layer(context, kSpec, a.stacks());
  std::thread other([&] {
    for (int i = 0; i < 50; ++i) layer.run(b.args());
  });
  for (int i = 0; i < 50; ++i) layer.run(a.args());
  other.join();
  expect_definition(a);
  expect_definition(b);
}

sluice_status create(const char* spec, const char* backend, const sluice_moe_weights* weights) {
  sluice::Context context(1);
  sluice_moe* made = nullptr;
  const sluice_status status = sluice_moe_create(context.get(), spec, backend, weights, &made);
  EXPECT_EQ(made != nullptr, status == SLUICE_OK);
  sluice_moe_destroy(made);
  return status;
}

bool last_error_has(const char* word) { return std::string(sluice_last_error()).find(word) != std::string::npos; }

TEST(CapiMoe, RefusalsNameWhatIsWrong) {
  Problem p;
  auto w = p.stacks();
  EXPECT_EQ(create("experts=5 top_k=9 hidden=48 inter=40", "auto", &w), SLUICE_INVALID_ARGUMENT);
  EXPECT_TRUE(last_error_has("top_k")) << sluice_last_error();
  EXPECT_EQ(create("experts=5 colour=9", "auto", &w), SLUICE_INVALID_ARGUMENT);
  EXPECT_TRUE(last_error_has("colour")) << sluice_last_error();
  EXPECT_EQ(create(kSpec, "abacus", &w), SLUICE_INVALID_ARGUMENT);
  EXPECT_TRUE(last_error_has("abacus") && last_error_has("auto")) << sluice_last_error();
  EXPECT_EQ(create(nullptr, "auto", &w), SLUICE_INVALID_ARGUMENT);
  EXPECT_EQ(create(kSpec, nullptr, &w), SLUICE_INVALID_ARGUMENT);
  EXPECT_EQ(create(kSpec, "auto", nullptr), SLUICE_INVALID_ARGUMENT);

  w.gate.codes = nullptr;
  EXPECT_EQ(create(kSpec, "auto", &w), SLUICE_INVALID_ARGUMENT);
  EXPECT_TRUE(last_error_has("gate")) << sluice_last_error();
  w = p.stacks();
  EXPECT_EQ(create("experts=5 top_k=2 hidden=48 inter=40 weights=fp8_channel act=swiglu", "auto", &w),
            SLUICE_INVALID_ARGUMENT);
  EXPECT_TRUE(last_error_has("scales")) << sluice_last_error();
  const std::vector<float> limit(kE, 7.0f);
  w.up.scales = limit.data();
  EXPECT_EQ(create(kSpec, "auto", &w), SLUICE_INVALID_ARGUMENT);
  EXPECT_TRUE(last_error_has("weights.up.scales is given, but bf16 has no scales")) << sluice_last_error();
  w = p.stacks();
  w.limit = limit.data();
  EXPECT_EQ(create(kSpec, "auto", &w), SLUICE_INVALID_ARGUMENT);
  EXPECT_TRUE(last_error_has("limit")) << sluice_last_error();
  w = p.stacks();
  w.struct_size = 8;
  EXPECT_EQ(create(kSpec, "auto", &w), SLUICE_INVALID_ARGUMENT);

  EXPECT_EQ(sluice_moe_create(nullptr, kSpec, "auto", &w, nullptr), SLUICE_INVALID_ARGUMENT);
  EXPECT_EQ(sluice_moe_run(nullptr, nullptr), SLUICE_INVALID_ARGUMENT);
  EXPECT_EQ(sluice_moe_refit(nullptr, nullptr), SLUICE_INVALID_ARGUMENT);
  int64_t bytes = 0;
  EXPECT_EQ(sluice_moe_workspace_bytes(nullptr, 1, &bytes), SLUICE_INVALID_ARGUMENT);
  EXPECT_EQ(sluice_context_create(-1, nullptr), SLUICE_INVALID_ARGUMENT);
  sluice_context* context = nullptr;
  for (const int threads : {-1, 100000}) {
    EXPECT_EQ(sluice_context_create(threads, &context), SLUICE_INVALID_ARGUMENT);
    EXPECT_NE(std::string(sluice_last_error()).find(std::to_string(threads)), std::string::npos);
    EXPECT_EQ(context, nullptr);
  }
  EXPECT_EQ(sluice_context_set_log(nullptr, nullptr, nullptr), SLUICE_INVALID_ARGUMENT);
}

TEST(CapiMoe, RefusesWrongArguments) {
  Problem p;
  sluice::Context context(1);
  const sluice::MoeLayer layer(context, kSpec, p.stacks());
  auto args = p.args();
  args.tokens = -1;
  EXPECT_THROW(layer.run(args), sluice::Error);
  args = p.args();
  args.output = nullptr;
  EXPECT_THROW(layer.run(args), sluice::Error);
  args = p.args();
  args.logits = nullptr;
  EXPECT_THROW(layer.run(args), sluice::Error);
  args = p.args();
  args.logits_dtype = static_cast<sluice_dtype>(9);
  EXPECT_THROW(layer.run(args), sluice::Error);
  args = SLUICE_INIT(sluice_moe_args);  // no tokens: nothing is touched
  EXPECT_NO_THROW(layer.run(args));
}

// A zeroed struct says what c.h documents: scales linear, numbers float32.
TEST(Capi, ZeroedStructsMeanTheDefaults) {
  const auto quantize = SLUICE_INIT(sluice_cuda_quantize_args);
  const auto gemm = SLUICE_INIT(sluice_cuda_gemm_args);
  EXPECT_EQ(quantize.layout, SLUICE_SCALES_LINEAR);
  EXPECT_EQ(gemm.layout, SLUICE_SCALES_LINEAR);
  EXPECT_EQ(quantize.dtype, SLUICE_F32);
  int64_t elements = 0;
  ASSERT_EQ(sluice_scale_elements(gemm.layout, 3, 5, &elements), SLUICE_OK);
  EXPECT_EQ(elements, 15);
  ASSERT_EQ(sluice_scale_elements(SLUICE_SCALES_128X4, 3, 5, &elements), SLUICE_OK);
  EXPECT_EQ(elements, 128 * 8);
  ASSERT_EQ(sluice_scale_elements(SLUICE_SCALES_8X4, 3, 5, &elements), SLUICE_OK);
  EXPECT_EQ(elements, 8 * 8);
  ASSERT_EQ(sluice_scale_elements(SLUICE_SCALES_TRANSPOSED, 3, 5, &elements), SLUICE_OK);
  EXPECT_EQ(elements, 15);
  EXPECT_EQ(sluice_scale_elements(4, 3, 5, &elements), SLUICE_INVALID_ARGUMENT);
}

// An input scale of 0 is 1.
TEST(Capi, ZeroedInputScalesAreOne) {
  Problem p;
  sluice::Context context(1);
  const std::string spec = "experts=5 top_k=2 hidden=48 inter=40 weights=fp8_tensor inputs=fp8_static dtype=float32";
  const auto codes = [&](const std::vector<uint16_t>& from) {
    std::vector<uint8_t> to;
    for (const uint16_t v : from) to.push_back(static_cast<uint8_t>((v >> 8 & 0x80) | (v & 0x3f)));
    return to;
  };
  const auto up = codes(p.up), gate = codes(p.gate), down = codes(p.down);
  const std::vector<float> scales(kE, 0.01f);
  auto w = SLUICE_INIT(sluice_moe_weights);
  w.up = {up.data(), scales.data(), nullptr};
  w.gate = {gate.data(), scales.data(), nullptr};
  w.down = {down.data(), scales.data(), nullptr};
  const auto run = [&] {
    std::fill(p.output.begin(), p.output.end(), std::numeric_limits<float>::quiet_NaN());
    sluice::MoeLayer(context, spec, w).run(p.args());
    return p.output;
  };
  const auto zeroed = run();
  w.input_scale1 = w.input_scale2 = 1;
  EXPECT_EQ(run(), zeroed);
  w.input_scale2 = 0.5f;
  EXPECT_NE(run(), zeroed);
}

// A size, or a reason: 0 bytes would be taken for a size.
TEST(Capi, PreparedBytesOrAReason) {
  int64_t bytes = -1;
  const char* const spec = "experts=4 top_k=2 hidden=256 inter=128";
  if (sluice_cuda_moe_prepared_bytes(spec, &bytes) == SLUICE_OK)
    EXPECT_GE(bytes, 4 * 3 * 256 * 128 * 2);
  else
    EXPECT_STREQ(sluice_last_error(), "this library was built without CUDA");
}

TEST(Capi, ErrorsBelongToTheirThread) {
  EXPECT_EQ(sluice_context_create(-1, nullptr), SLUICE_INVALID_ARGUMENT);
  const std::string mine = sluice_last_error();
  std::thread([] {
    EXPECT_STREQ(sluice_last_error(), "");
    EXPECT_EQ(sluice_moe_run(nullptr, nullptr), SLUICE_INVALID_ARGUMENT);
  }).join();
  EXPECT_EQ(sluice_last_error(), mine);
}

TEST(Capi, ExplainFitsOrSaysHowMuchItNeeds) {
  const std::string text = sluice::explain(kSpec);
  EXPECT_NE(text.find(": chosen"), std::string::npos) << text;
  size_t needed = 0;
  char small[4];
  EXPECT_EQ(sluice_moe_explain(kSpec, small, sizeof small, &needed), SLUICE_BUFFER_TOO_SMALL);
  EXPECT_EQ(needed, text.size() + 1);
  EXPECT_EQ(std::string(small), text.substr(0, 3));
}

}  // namespace
