// SPDX-License-Identifier: Apache-2.0
#include "spec/moe_spec.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <random>

#include "tests/support/random.h"

namespace sluice {
namespace {

std::string sentence_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::invalid_argument);
    return e.what();
  }
  return "";
}

TEST(MoeSpec, PrintsWithoutDefaultsAndParsesBack) {
  MoeSpec s;
  s.experts = 128;
  s.top_k = 8;
  s.hidden = 2048;
  s.inter = 768;
  s.weights = format::Format::nvfp4;
  s.inputs = format::InputFormat::nvfp4_token;
  s.tokens = 64;
  EXPECT_EQ(to_string(s), "experts=128 top_k=8 hidden=2048 inter=768 weights=nvfp4 inputs=nvfp4_token tokens=64");
  EXPECT_EQ(parse_moe_spec(to_string(s)), s);
  s.inputs = format::InputFormat::nvfp4;  // nvfp4's own
  EXPECT_EQ(to_string(s), "experts=128 top_k=8 hidden=2048 inter=768 weights=nvfp4 tokens=64");
  EXPECT_EQ(parse_moe_spec(to_string(s)), s);
  EXPECT_EQ(to_string(MoeSpec{}), "");
}

TEST(MoeSpec, TheArchitecturesExampleParses) {
  const MoeSpec s = parse_moe_spec(
      "experts=128 top_k=8 hidden=2048 inter=768 weights=nvfp4 act=swiglu routing=renormalize tokens=64");
  EXPECT_EQ(s.inputs, format::InputFormat::nvfp4);
  EXPECT_EQ(s.inter, 768);
  EXPECT_NO_THROW(validate(s));
}

TEST(MoeSpec, RoundTripOfRandomSpecs) {
  std::mt19937 rng = test::rng();
  const auto flip = [&] { return rng() % 2 == 0; };
  for (int i = 0; i < 5000; ++i) {
    MoeSpec s;
    s.experts = static_cast<int>(rng() % 4096);
    s.top_k = static_cast<int>(rng() % 64);
    s.hidden = static_cast<int64_t>(rng());
    s.inter = static_cast<int64_t>(rng()) << 8;
    s.weights = format::kFormats[rng() % format::kFormats.size()].value;
    s.inputs = format::kInputFormats[rng() % format::kInputFormats.size()].value;
    s.dtype = flip() ? DType::bf16 : DType::f32;
    s.act = activation::kActivations[rng() % activation::kActivations.size()].value;
    s.routing = routing::kMethods[rng() % routing::kMethods.size()].value;
    s.groups = static_cast<int>(rng() % 9);
    s.top_groups = static_cast<int>(rng() % 9);
    s.routed_scale = flip() ? 1.0f : std::ldexp(static_cast<float>(rng()), -40) * (flip() ? 1.0f : -1.0f);
    s.local_offset = static_cast<int>(rng() % 100);
    s.local_experts = static_cast<int>(rng() % 100);
    s.tokens = static_cast<int64_t>(rng());
    for (bool MoeSpec::*f :
         {&MoeSpec::bias, &MoeSpec::act_params, &MoeSpec::norm_topk, &MoeSpec::routed, &MoeSpec::weight_on_input,
          &MoeSpec::finalize, &MoeSpec::fp8_block_trtllm, &MoeSpec::fp8_f32_sums, &MoeSpec::deterministic})
      s.*f = flip();
    ASSERT_EQ(parse_moe_spec(to_string(s)), s) << to_string(s);
  }
}

TEST(MoeSpec, BadLinesNameTheKeyAndWhatIsAccepted) {
  const auto refuses = [](std::string_view line, const std::string& word) {
    const std::string text = sentence_of([&] { parse_moe_spec(line); });
    EXPECT_NE(text.find(word), std::string::npos) << line << " -> " << text;
  };
  refuses("experts", "key=value");
  refuses("expert=4", "accepted: experts, top_k");
  refuses("experts=4 experts=5", "twice");
  refuses("experts=four", "experts is \"four\"; accepted: a whole number");
  refuses("experts=99999999999", "experts is");
  refuses("experts=4x", "experts is \"4x\"");
  refuses("experts=", "experts is \"\"");
  refuses("weights=int4", "accepted: bf16, fp8_tensor");
  refuses("dtype=float16", "accepted: bfloat16, float32");
  refuses("bias=yes", "accepted: 1, 0");
  refuses("routed_scale=x", "a number");
}

TEST(MoeSpec, ContradictionsAreRefusedWithASentence) {
  const std::string good = "experts=16 top_k=4 hidden=64 inter=96";
  EXPECT_NO_THROW(validate(parse_moe_spec(good)));
  const auto refuses = [](const std::string& line, const std::string& word) {
    const std::string text = sentence_of([&] { validate(parse_moe_spec(line)); });
    EXPECT_NE(text.find(word), std::string::npos) << line << " -> " << text;
  };
  refuses("top_k=1 hidden=64 inter=64", "experts is 0");
  refuses("experts=4 hidden=64 inter=64", "top_k is 0");
  refuses("experts=4 top_k=5 hidden=64 inter=64", "top_k is 5");
  refuses("experts=4 top_k=1 inter=64", "hidden is 0");
  refuses("experts=4 top_k=1 hidden=64 inter=-3", "inter is -3");
  refuses(good + " weights=nvfp4 inputs=mxfp8", "accepted: plain, nvfp4, nvfp4_token");
  refuses("experts=4 top_k=1 hidden=72 inter=64 weights=nvfp4", "hidden is 72");
  refuses("experts=4 top_k=1 hidden=64 inter=48 weights=mxfp8", "inter is 48");
  refuses(good + " act=relu2 act_params=1", "relu2");
  refuses(good + " weight_on_input=1", "weight_on_input");
  refuses(good + " groups=2", "only deepseek_v3 has groups");
  refuses(good + " local_offset=14 local_experts=4", "4 experts from 14 on");
  refuses(good + " local_offset=1", "16 experts from 1 on");
  refuses(good + " fp8_block_trtllm=1", "fp8_block_trtllm");
  refuses(good + " weights=mxfp8 fp8_f32_sums=1", "fp8_f32_sums is set with weights mxfp8");
  refuses(good + " tokens=-1", "tokens is -1");
  for (const char* ignored : {"groups=4 top_groups=2", "norm_topk=0"})
    refuses(good + " routed=1 routing=deepseek_v3 " + ignored, "experts and weights are given");
  // Given weights take a scale, whatever the label of the method would.
  EXPECT_NO_THROW(validate(parse_moe_spec(good + " routed=1 routed_scale=2.5")));
  refuses(good + " routed=1 routed_scale=inf", "routed_scale is inf");
  // Routing that is given makes the method a label.
  EXPECT_NO_THROW(validate(parse_moe_spec("experts=4 top_k=6 hidden=64 inter=64 routed=1")));
  // Odd sizes are fine where scales do not forbid them.
  EXPECT_NO_THROW(validate(parse_moe_spec("experts=4 top_k=1 hidden=65 inter=961 weights=fp8_block")));
}

}  // namespace
}  // namespace sluice
