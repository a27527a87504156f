// SPDX-License-Identifier: Apache-2.0
// Checkpoints of random codes and scales are written under every published spelling and must come back bit for bit.
#include "weights/load.h"

#include <cmath>
#include <functional>

#include "weights/calibration.h"
#include "weights/pad.h"
#include "written_checkpoint.h"

namespace sluice::weights {
namespace {

using format::Format;
using format::InputFormat;

const std::string kModule = "model.layers.1.self_attn.q_proj";

struct Live {
  ThreadPool pool{2};
  std::vector<std::string> warnings;
  std::vector<Progress> progress;
  Context ctx{pool,
              [this](LogLevel level, std::string_view text) {
                if (level == LogLevel::warning) warnings.emplace_back(text);
              },
              [this](const Progress& p) { progress.push_back(p); }};
};

struct LoadTest : testing::Test {
  Random random;
  testing::ScopedTrace trace{__FILE__, __LINE__, fmt::format("seed {}", random.seed)};
  Live live;
  Loader load(Written& written, LoadOptions options = {}) { return {live.ctx, written.open(), std::move(options)}; }
};

TEST_F(LoadTest, LinearOfEveryFormat) {
  for (const auto& [format, name] : format::kFormats) {
    Written written;
    written.config = config_for(format);
    const QuantTensor w = random_quant(random, format, 1, 200, 144);
    put_matrix(written, kModule, w);
    written.tensors[kModule + ".input_scale"] = scalar(0.25f);
    const LoadedLinear got = load(written).linear(kModule, 200, 144);
    EXPECT_TRUE(same_bytes(got.w, w)) << name;
    EXPECT_EQ(got.inputs, info(format).input) << name;
    EXPECT_EQ(got.input_scale, format == Format::nvfp4 ? 0.25f : 1.0f) << name;
  }
  ASSERT_FALSE(live.progress.empty());
  EXPECT_EQ(live.progress.back().what, "loading");
  EXPECT_GT(live.progress.back().done, 0);
}

TEST_F(LoadTest, OtherSpellings) {
  const auto expect_same = [&](Written& written, const QuantTensor& w, const char* what) {
    EXPECT_TRUE(same_bytes(load(written).linear(kModule, w.rows, w.cols).w, w)) << what;
  };
  {
    Written written;  // ModelOpt MXFP8 and files with the newer element type
    written.config = config_for(Format::mxfp8);
    const QuantTensor w = random_quant(random, Format::mxfp8, 1, 40, 64);
    put_matrix(written, kModule, w);
    written.tensors.erase(kModule + ".weight_scale_inv");
    written.tensors[kModule + ".weight_scale"] = w.scales.slice(0);
    expect_same(written, w, "mxfp8 weight_scale as e8m0");
  }
  {
    Written written;  // ModelOpt FP8_PB_WO
    written.config = R"({"quantization_config": {"quant_algo": "FP8_PB_WO"}})";
    const QuantTensor w = random_quant(random, Format::fp8_block, 1, 256, 300);
    put_matrix(written, kModule, w);
    written.tensors.erase(kModule + ".weight_scale_inv");
    written.tensors[kModule + ".weight_scale"] = as_type(w.scales, DType::f32, {2, 1, 3, 1});
    expect_same(written, w, "four-dimensional blocks");
    EXPECT_EQ(load(written).linear(kModule, 256, 300).inputs, InputFormat::plain);
  }
  {
    Written written;  // llm-compressor keeps channel scales in the model's type
    written.config = config_for(Format::fp8_channel);
    QuantTensor w = random_quant(random, Format::fp8_channel, 1, 24, 64);
    for (int i = 0; i < 24; ++i) w.scales.as<float>()[i] = round_to_bf16(w.scales.as<float>()[i]);
    put_matrix(written, kModule, w);
    written.tensors[kModule + ".weight_scale"] = as_type(to_bf16(w.scales), DType::bf16, {24, 1});
    expect_same(written, w, "bf16 scales");
  }
  {
    Written written;  // UE8M0 block scales (DeepSeek-V3.1 and later)
    written.config = config_for(Format::fp8_block);
    QuantTensor w = random_quant(random, Format::fp8_block, 1, 130, 64);
    Tensor exponents(DType::e8m0, {2, 1});
    for (int i = 0; i < 2; ++i) {
      exponents.as<uint8_t>()[i] = static_cast<uint8_t>(110 + i);
      w.scales.as<float>()[i] = std::ldexp(1.0f, 110 + i - 127);
    }
    put_matrix(written, kModule, w);
    written.tensors[kModule + ".weight_scale_inv"] = exponents;
    expect_same(written, w, "e8m0 block scales");
  }
  {
    Written written;  // compressed-tensors NVFP4: reciprocal global scales
    written.config = R"({"quantization_config": {"quant_method": "compressed-tensors", "config_groups": {"group_0": {
        "targets": ["Linear"], "weights": {"num_bits": 4, "type": "float", "strategy": "tensor_group",
        "group_size": 16}, "input_activations": {"num_bits": 4, "type": "float", "strategy": "tensor_group",
        "group_size": 16, "dynamic": "local"}}}}})";
    QuantTensor w = random_quant(random, Format::nvfp4, 1, 8, 48);
    w.global.as<float>()[0] = 1.0f / 1024.0f;
    put_matrix(written, kModule, w);
    written.tensors[kModule + ".weight_packed"] = written.tensors[kModule + ".weight"];
    written.tensors.erase(kModule + ".weight");
    written.tensors.erase(kModule + ".weight_scale_2");
    written.tensors[kModule + ".weight_global_scale"] = scalar(1024.0f, {1});
    written.tensors[kModule + ".input_global_scale"] = scalar(64.0f, {1});
    expect_same(written, w, "reciprocal scales");
    EXPECT_EQ(load(written).linear(kModule, 8, 48).input_scale, 1.0f / 64.0f);
  }
  {
    Written written;  // float32 and float16 weights round to BF16
    const QuantTensor w = random_quant(random, Format::bf16, 1, 5, 6);
    written.tensors[kModule + ".weight"] = as_type(dequantize(w), DType::f32, {5, 6});
    expect_same(written, w, "float32");
    Tensor half(DType::f16, {1, 3});
    const uint16_t bits[] = {0x3c00, 0xc100, 0x0400};  // 1, -2.5, 2^-14
    std::copy_n(bits, 3, half.as<uint16_t>());
    written.tensors[kModule + ".weight"] = half;
    const Tensor values = dequantize(load(written).linear(kModule, 1, 3).w);
    EXPECT_EQ(values.as<float>()[0], 1.0f);
    EXPECT_EQ(values.as<float>()[1], -2.5f);
    EXPECT_EQ(values.as<float>()[2], std::ldexp(1.0f, -14));
  }
}

TEST_F(LoadTest, PerTokenNvfp4IgnoresInputScales) {
  Written written;
  written.config = config_for(Format::nvfp4);
  put_matrix(written, kModule, random_quant(random, Format::nvfp4, 1, 8, 32));
  LoadOptions options;
  options.nvfp4_per_token = true;
  const LoadedLinear got = load(written, options).linear(kModule, 8, 32);  // there is no input_scale at all
  EXPECT_EQ(got.inputs, InputFormat::nvfp4_token);
  EXPECT_EQ(got.input_scale, 1.0f);
  const std::string text = error_of([&] { load(written).linear(kModule, 8, 32); });
  EXPECT_NE(text.find("its input_scale is missing; --nvfp4-per-token-activation"), std::string::npos) << text;
}

TEST_F(LoadTest, UnquantisedTensorInAQuantisedCheckpointIsBf16AndSaysSo) {
  Written written;
  written.config = config_for(Format::fp8_block);
  const QuantTensor w = random_quant(random, Format::bf16, 1, 8, 32);
  put_matrix(written, kModule, w);
  const LoadedLinear got = load(written).linear(kModule, 8, 32);
  EXPECT_TRUE(same_bytes(got.w, w));
  EXPECT_EQ(got.inputs, InputFormat::plain);
  ASSERT_EQ(live.warnings.size(), 1u);
  EXPECT_NE(live.warnings[0].find(kModule + " is stored unquantised"), std::string::npos);
}

// --- Experts ---------------------------------------------------------------------------------------------------------

const std::string kExperts = "model.layers.3.mlp.experts";

void put_experts(Written& to, const ExpertWeights& w, bool fixed_inputs) {
  for (int64_t e = 0; e < w.up.experts; ++e) {
    const std::string module = kExperts + "." + std::to_string(e) + ".";
    put_matrix(to, module + "up_proj", w.up, e);
    if (!w.gate.codes.empty()) put_matrix(to, module + "gate_proj", w.gate, e);
    put_matrix(to, module + "down_proj", w.down, e);
    if (!fixed_inputs) continue;
    // The largest: 0.5 at gate of expert 1, 0.75 at down of the last.
    to.tensors[module + "up_proj.input_scale"] = scalar(0.125f);
    if (!w.gate.codes.empty()) to.tensors[module + "gate_proj.input_scale"] = scalar(e == 1 ? 0.5f : 0.25f);
    to.tensors[module + "down_proj.input_scale"] = scalar(e == w.up.experts - 1 ? 0.75f : 0.0625f);
  }
}

ExpertNames names_of(bool gated) {
  ExpertNames names;
  names.module = kExperts;
  if (!gated) names.gate.clear();
  return names;
}

TEST_F(LoadTest, ExpertsOfEveryFormatAndShard) {
  const int64_t experts = 5, inter = 160, hidden = 144;
  for (const auto& [format, name] : format::kFormats)
    for (bool gated : {true, false})
      for (bool fixed : {false, true}) {
        if (fixed && format != Format::fp8_tensor && format != Format::nvfp4) continue;
        if (!fixed && format == Format::nvfp4) continue;
        Written written;
        written.config = config_for(format, fixed);
        ExpertWeights w = random_experts(random, format, experts, inter, hidden, gated, false);
        w.input_scale1 = fixed ? (gated ? 0.5f : 0.125f) : 1.0f;
        w.input_scale2 = fixed ? 0.75f : 1.0f;
        put_experts(written, w, fixed);
        for (const Shard which : {Shard{}, Shard{0, 2, 0, 1}, Shard{2, 3, 1, 2}, Shard{7, 8, 3, 4}}) {
          LoadOptions options;
          options.shard = which;
          const LoadedExperts got = load(written, options).experts(names_of(gated), {experts, inter, hidden});
          EXPECT_TRUE(same_bytes(got.weights, shard(w, which, got.format.inputs)))
              << name << " gated " << gated << " tp " << which.tp_rank << "/" << which.tp_size << " ep "
              << which.ep_rank << "/" << which.ep_size;
        }
      }
}

TEST_F(LoadTest, ModelOptMixesFormatsByLayer) {
  Written written;
  written.config = R"({"quantization_config": {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION",
      "quantized_layers": {"model.layers.1.self_attn.q_proj": {"quant_algo": "FP8"},
                           "model.layers.2.self_attn.q_proj": {"quant_algo": "MXFP8"},
                           "model.layers.3.mlp.experts": {"quant_algo": "NVFP4", "group_size": 16}}}})";
  const QuantTensor fp8 = random_quant(random, Format::fp8_tensor, 1, 64, 96),
                    mxfp8 = random_quant(random, Format::mxfp8, 1, 64, 96),
                    plain = random_quant(random, Format::bf16, 1, 64, 96);
  const std::string second = "model.layers.2.self_attn.q_proj", third = "model.layers.3.self_attn.q_proj";
  put_matrix(written, kModule, fp8);
  written.tensors[kModule + ".input_scale"] = scalar(0.5f);
  put_matrix(written, second, mxfp8);
  put_matrix(written, third, plain);
  ExpertWeights w = random_experts(random, Format::nvfp4, 3, 48, 64, true, false);
  w.input_scale1 = 0.5f;
  w.input_scale2 = 0.75f;
  put_experts(written, w, true);
  Loader loader = load(written);
  const LoadedLinear a = loader.linear(kModule, 64, 96), b = loader.linear(second, 64, 96),
                     c = loader.linear(third, 64, 96);
  EXPECT_TRUE(same_bytes(a.w, fp8) && same_bytes(b.w, mxfp8) && same_bytes(c.w, plain));
  EXPECT_EQ(a.inputs, InputFormat::fp8_static);
  EXPECT_EQ(a.input_scale, 0.5f);
  EXPECT_EQ(b.inputs, InputFormat::mxfp8);
  EXPECT_EQ(c.inputs, InputFormat::plain);
  const LoadedExperts experts = loader.experts(names_of(true), {3, 48, 64});
  EXPECT_EQ(experts.format, (ModuleFormat{Format::nvfp4, InputFormat::nvfp4}));
  EXPECT_TRUE(same_bytes(experts.weights, w));
  EXPECT_TRUE(live.warnings.empty());
}

TEST_F(LoadTest, ShortGroupsArePaddedForTheKernels) {
  for (const auto& [format, padded] : {std::pair{Format::nvfp4, 64},
                                       {Format::mxfp8, 64},
                                       {Format::mxfp4, 64},
                                       {Format::fp8_block, 56},
                                       {Format::bf16, 56}}) {
    Written written;
    written.config = config_for(format);
    const ExpertWeights w = random_experts(random, format, 2, 56, 32, true, false);
    put_experts(written, w, true);
    const ExpertWeights got = load(written).experts(names_of(true), {2, 56, 32}).weights;
    EXPECT_EQ(got.up.rows, padded);
    EXPECT_TRUE(same_bytes(got.gate, pad(w.gate, padded, 32)));
    EXPECT_TRUE(same_bytes(got.down, pad(w.down, 32, padded)));
  }
}

// Per-expert stacks of one projection side by side: [E, 2I, ...] in an order.
QuantTensor merged(const ExpertWeights& w, GateUpOrder order) { return merge_gate_up({w.gate, w.up}, order); }

TEST_F(LoadTest, FusedExpertTensors) {
  const int64_t experts = 3, inter = 128, hidden = 64;
  for (const auto& [format, name] : format::kFormats) {
    if (format == Format::nvfp4 || format == Format::fp8_tensor) continue;  // scales of whole matrices: below
    Written written;
    written.config = config_for(format);
    ExpertWeights w = random_experts(random, format, experts, inter, hidden, true, false);
    w.input_scale1 = w.input_scale2 = 1;
    const QuantTensor gate_up = merged(w, GateUpOrder::gate_up);
    written.tensors[kExperts + ".gate_up_proj"] = gate_up.codes;
    written.tensors[kExperts + ".down_proj"] = w.down.codes;
    if (format != Format::bf16) {
      written.tensors[kExperts + ".gate_up_proj_scale_inv"] = gate_up.scales;
      written.tensors[kExperts + ".down_proj_scale_inv"] = w.down.scales;
    }
    for (const Shard which : {Shard{}, Shard{1, 2, 1, 2}}) {
      LoadOptions options;
      options.shard = which;
      const LoadedExperts got = load(written, options).experts(names_of(true), {experts, inter, hidden});
      EXPECT_TRUE(same_bytes(got.weights, shard(w, which, got.format.inputs))) << name;
    }
  }
}

TEST_F(LoadTest, FusedScalesOfWholeMatrices) {
  const int64_t experts = 3, inter = 48, hidden = 32;
  Written written;
  written.config = config_for(Format::nvfp4);
  ExpertWeights w = random_experts(random, Format::nvfp4, experts, inter, hidden, true, false);
  ExpertWeights codes = w;
  codes.gate.global = w.up.global;  // merge_gate_up() wants one; the file has two
  const QuantTensor gate_up = merged(codes, GateUpOrder::gate_up);
  written.tensors[kExperts + ".gate_up_proj"] = gate_up.codes;
  written.tensors[kExperts + ".gate_up_proj_weight_scale"] = gate_up.scales;
  Tensor both(DType::f32, {experts, 2}), inputs(DType::f32, {experts, 2});
  for (int64_t e = 0; e < experts; ++e) {
    both.as<float>()[2 * e] = w.gate.global.as<float>()[e];
    both.as<float>()[2 * e + 1] = w.up.global.as<float>()[e];
    inputs.as<float>()[2 * e] = 0.5f;
    inputs.as<float>()[2 * e + 1] = 0.25f + static_cast<float>(e);
  }
  written.tensors[kExperts + ".gate_up_proj_weight_scale_2"] = both;
  written.tensors[kExperts + ".gate_up_proj_input_scale"] = inputs;
  written.tensors[kExperts + ".down_proj"] = w.down.codes;
  written.tensors[kExperts + ".down_proj_weight_scale"] = w.down.scales;
  written.tensors[kExperts + ".down_proj_weight_scale_2"] = w.down.global;
  written.tensors[kExperts + ".down_proj_input_scale"] = scalar(0.125f, {1});
  w.input_scale1 = 2.25f;
  w.input_scale2 = 0.125f;
  EXPECT_TRUE(same_bytes(load(written).experts(names_of(true), {experts, inter, hidden}).weights, w));
}

TEST_F(LoadTest, TransposedAndInterleavedBf16) {  // gpt-oss in BF16: [E, H, 2I] with gate and up columns alternating
  const int64_t experts = 3, inter = 70, hidden = 44;
  Written written;
  ExpertWeights w = random_experts(random, Format::bf16, experts, inter, hidden, true, true);
  w.input_scale1 = w.input_scale2 = 1;
  Tensor gate_up(DType::bf16, {experts, hidden, 2 * inter}), down(DType::bf16, {experts, inter, hidden});
  Tensor bias(DType::f32, {experts, 2 * inter});
  for (int64_t e = 0; e < experts; ++e)
    for (int64_t i = 0; i < inter; ++i) {
      bias.as<float>()[e * 2 * inter + 2 * i] = w.bias_gate.as<float>()[e * inter + i];
      bias.as<float>()[e * 2 * inter + 2 * i + 1] = w.bias_up.as<float>()[e * inter + i];
      for (int64_t h = 0; h < hidden; ++h) {
        const int64_t at = (e * inter + i) * hidden + h;
        gate_up.as<uint16_t>()[(e * hidden + h) * 2 * inter + 2 * i] = w.gate.codes.as<uint16_t>()[at];
        gate_up.as<uint16_t>()[(e * hidden + h) * 2 * inter + 2 * i + 1] = w.up.codes.as<uint16_t>()[at];
        down.as<uint16_t>()[at] = w.down.codes.as<uint16_t>()[(e * hidden + h) * inter + i];
      }
    }
  written.tensors[kExperts + ".gate_up_proj"] = gate_up;
  written.tensors[kExperts + ".gate_up_proj_bias"] = bias;
  written.tensors[kExperts + ".down_proj"] = down;
  written.tensors[kExperts + ".down_proj_bias"] = w.bias_down;
  ExpertNames names = names_of(true);
  names.order = GateUpOrder::interleaved;
  names.transposed = true;
  for (const Shard which : {Shard{}, Shard{0, 3, 1, 2}, Shard{2, 3, 0, 2}}) {
    LoadOptions options;
    options.shard = which;
    EXPECT_TRUE(same_bytes(load(written, options).experts(names, {experts, inter, hidden}).weights, shard(w, which)));
  }
}

TEST_F(LoadTest, GptOssBlocks) {
  const int64_t experts = 3, inter = 96, hidden = 64;
  Written written;
  written.config = config_for(Format::mxfp4);
  ExpertWeights w = random_experts(random, Format::mxfp4, experts, inter, hidden, true, true);
  w.input_scale1 = w.input_scale2 = 1;
  const QuantTensor gate_up = merged(w, GateUpOrder::interleaved);
  written.tensors[kExperts + ".gate_up_proj_blocks"] = gate_up.codes.reshape({experts, 2 * inter, hidden / 32, 16});
  written.tensors[kExperts + ".gate_up_proj_scales"] = as_type(gate_up.scales, DType::u8, gate_up.scales.shape());
  written.tensors[kExperts + ".down_proj_blocks"] = w.down.codes.reshape({experts, hidden, inter / 32, 16});
  written.tensors[kExperts + ".down_proj_scales"] = as_type(w.down.scales, DType::u8, w.down.scales.shape());
  Tensor bias(DType::f32, {experts, 2 * inter});
  for (int64_t i = 0; i < experts * inter; ++i) {
    bias.as<float>()[2 * i] = w.bias_gate.as<float>()[i];
    bias.as<float>()[2 * i + 1] = w.bias_up.as<float>()[i];
  }
  written.tensors[kExperts + ".gate_up_proj_bias"] = bias;
  written.tensors[kExperts + ".down_proj_bias"] = w.bias_down;
  for (const Shard which : {Shard{}, Shard{1, 2, 1, 2}}) {
    LoadOptions options;
    options.shard = which;
    EXPECT_TRUE(
        same_bytes(load(written, options).experts(names_of(true), {experts, inter, hidden}).weights, shard(w, which)));
  }
}

// --- Online ----------------------------------------------------------------------------------------------------------

TEST_F(LoadTest, OnlineShardsHoldTheCodesOfTheWhole) {
  const int64_t experts = 3, inter = 176, hidden = 96;
  Written written;
  put_experts(written, random_experts(random, Format::bf16, experts, inter, hidden, true, false), false);
  for (const char* name : {"fp8", "fp8_channel", "fp8_block", "mxfp8", "nvfp4_online", "mxfp4"}) {
    LoadOptions options;
    options.online = parse_online_format(name);
    const LoadedExperts whole = load(written, options).experts(names_of(true), {experts, inter, hidden});
    EXPECT_EQ(whole.format, options.online->format);
    for (const Shard which : {Shard{0, 2, 0, 1}, Shard{1, 2, 1, 2}, Shard{5, 8, 0, 1}}) {
      options.shard = which;
      EXPECT_TRUE(same_bytes(load(written, options).experts(names_of(true), {experts, inter, hidden}).weights,
                             shard(whole.weights, which, whole.format.inputs)))
          << name;
    }
  }
}

TEST_F(LoadTest, OnlineStaticNvfp4NeedsCalibration) {
  Written written;
  put_experts(written, random_experts(random, Format::bf16, 2, 32, 32, true, false), false);
  LoadOptions options;
  options.online = parse_online_format("nvfp4");
  const std::string text = error_of([&] { load(written, options).experts(names_of(true), {2, 32, 32}); });
  EXPECT_NE(text.find("--nvfp4-per-token-activation"), std::string::npos) << text;
  EXPECT_NE(text.find("sluice quantize"), std::string::npos) << text;
  options.amax = {{expert_inputs(kExperts).gemm1, 2688.0f}, {expert_inputs(kExperts).gemm2, 26.88f}};
  const LoadedExperts got = load(written, options).experts(names_of(true), {2, 32, 32});
  EXPECT_EQ(got.weights.input_scale1, 1.0f);
  EXPECT_EQ(got.weights.input_scale2, 26.88f / 2688.0f);
  options.amax.clear();
  options.nvfp4_per_token = true;
  EXPECT_EQ(load(written, options).experts(names_of(true), {2, 32, 32}).format.inputs, InputFormat::nvfp4_token);
}

TEST_F(LoadTest, OnlineTakesLinearsByFormat) {
  Written written;
  const QuantTensor w = random_quant(random, Format::bf16, 1, 64, 64);
  put_matrix(written, kModule, w);
  put_matrix(written, "lm_head", w);
  const auto loaded = [&](const char* format, const char* module) {
    LoadOptions options;
    options.online = parse_online_format(format);
    return load(written, options).linear(module, 64, 64);
  };
  EXPECT_EQ(loaded("mxfp8", kModule.c_str()).w.format, Format::mxfp8);
  EXPECT_EQ(loaded("mxfp8", "lm_head").w.format, Format::bf16);
  EXPECT_EQ(loaded("nvfp4_online", kModule.c_str()).w.format, Format::bf16);
  EXPECT_EQ(loaded("fp8", kModule.c_str()).inputs, InputFormat::fp8_token);
  written.config = config_for(Format::mxfp8);
  EXPECT_NE(error_of([&] { loaded("fp8", "lm_head"); }).find("the checkpoint is quantised already (mxfp8)"),
            std::string::npos);
}

// --- Broken checkpoints ----------------------------------------------------------------------------------------------

struct Break {
  Format format;
  const char* what;
  std::function<void(Written&)> edit;
  std::string sentence;  // all of its parts, separated by |
};

void expect_parts(const std::string& text, const std::string& parts, const std::string& what) {
  for (size_t at = 0; at <= parts.size();) {
    const size_t end = std::min(parts.find('|', at), parts.size());
    EXPECT_NE(text.find(parts.substr(at, end - at)), std::string::npos) << what << ": " << text;
    at = end + 1;
  }
}

TEST_F(LoadTest, BrokenTensorsNameFileTensorValueAndWhatIsExpected) {
  const std::string w = kModule + ".weight", scale = kModule + ".weight_scale", inv = kModule + ".weight_scale_inv";
  const auto set_float = [](const std::string& name, float value) {
    return [=](Written& c) { c.tensors[name].as<float>()[0] = value; };
  };
  const auto set_byte = [](const std::string& name, uint8_t value) {
    return [=](Written& c) { c.tensors[name].as<uint8_t>()[3] = value; };
  };
  const auto erase = [](const std::string& name) { return [=](Written& c) { c.tensors.erase(name); }; };
  const auto reshape = [](const std::string& name, Shape shape) {
    return [=](Written& c) { c.tensors[name] = c.tensors[name].reshape(shape); };
  };
  const auto replace = [](const std::string& name, DType dtype, Shape shape) {
    return [=](Written& c) { c.tensors[name] = Tensor(dtype, shape).zero(); };
  };
  const std::vector<Break> breaks{
      {Format::bf16, "no weight", erase(w), "has no tensor \"model.layers.1.self_attn.q_proj.weight\""},
      {Format::bf16, "shape", reshape(w, {64, 160}), "model.safetensors: tensor \"|[64, 160]; [160, 64] is expected"},
      {Format::bf16, "integers", replace(w, DType::i32, {160, 64}), "int32, but config.json has no"},
      {Format::bf16, "codes without a config", replace(w, DType::e4m3, {160, 64}),
       "float8_e4m3fn, but config.json has no quantization_config"},
      {Format::fp8_tensor, "wrong codes", replace(w, DType::u8, {160, 64}),
       "is uint8; float8_e4m3fn is expected for fp8_tensor"},
      {Format::fp8_tensor, "no scale", erase(scale), "its scales (weight_scale or weight_scale_inv"},
      {Format::fp8_tensor, "NaN scale", set_float(scale, NAN), "holds nan at [0]; scales are finite"},
      {Format::fp8_tensor, "infinite scale", set_float(scale, INFINITY), "holds inf at [0]"},
      {Format::fp8_tensor, "negative scale", set_float(scale, -1), "holds -1 at [0]"},
      {Format::fp8_tensor, "many scales", replace(scale, DType::f32, {160}), "[160]; one value is expected"},
      {Format::fp8_tensor, "integer scale", replace(scale, DType::i32, {}), "is int32; float32, bfloat16 or float16"},
      {Format::fp8_tensor, "NaN code", set_byte(w, 0xff), "q_proj.weight\" holds a NaN code"},
      {Format::fp8_channel, "scale shape", replace(scale, DType::f32, {64, 1}), "[64, 1]; [160] is expected"},
      {Format::fp8_block, "scale shape", replace(inv, DType::f32, {1, 2}), "[1, 2]; [2, 1] is expected for fp8_block"},
      {Format::fp8_block, "NaN scale", set_float(inv, NAN), "weight_scale_inv\" holds nan"},
      {Format::mxfp8, "E8M0 255", set_byte(inv, 255), "holds the byte 255 at [3], which reads as nan"},
      {Format::mxfp8, "scale shape", replace(inv, DType::u8, {160, 4}), "[160, 4]; [160, 2] is expected for mxfp8"},
      {Format::mxfp8, "scale type", replace(inv, DType::f32, {160, 2}), "is float32; uint8 (biased exponents)"},
      {Format::nvfp4, "no global scale", erase(kModule + ".weight_scale_2"),
       "its global scale (weight_scale_2 beside it) is missing"},
      {Format::nvfp4, "no input scale", erase(kModule + ".input_scale"), "--nvfp4-per-token-activation"},
      {Format::nvfp4, "zero input scale", set_float(kModule + ".input_scale", 0),
       "holds 0; input scales are positive finite numbers"},
      {Format::nvfp4, "NaN input scale", set_float(kModule + ".input_scale", NAN), "input_scale\" holds nan"},
      {Format::nvfp4, "NaN block scale", set_byte(scale, 0x7f), "holds the byte 127 at [3], which reads as nan"},
      {Format::nvfp4, "negative block scale", set_byte(scale, 0x90), "holds the byte 144 at [3]"},
      {Format::nvfp4, "unpacked", replace(w, DType::u8, {160, 64}), "[160, 64]; [160, 32] is expected for nvfp4"},
      {Format::nvfp4, "NaN global", set_float(kModule + ".weight_scale_2", NAN), "weight_scale_2\" holds nan"},
  };
  for (const Break& b : breaks) {
    Written written;
    written.config = config_for(b.format);
    put_matrix(written, kModule, random_quant(random, b.format, 1, 160, 64));
    written.tensors[kModule + ".input_scale"] = scalar(0.5f);
    b.edit(written);
    if (written.tensors.empty()) written.tensors["x"] = scalar(0);
    expect_parts(error_of([&] { load(written).linear(kModule, 160, 64); }), b.sentence, b.what);
  }
}

TEST_F(LoadTest, BrokenExperts) {
  const auto text_of = [&](Format format, const std::function<void(Written&)>& edit, ExpertShape shape) {
    Written written;
    written.config = config_for(format);
    put_experts(written, random_experts(random, format, 4, 64, 32, true, false), true);
    edit(written);
    return error_of([&] { load(written).experts(names_of(true), shape); });
  };
  const auto keep = [](Written&) {};
  expect_parts(text_of(Format::bf16, keep, {5, 64, 32}), "has no tensor \"" + kExperts + ".4.gate_proj.weight\"",
               "config says more");
  expect_parts(text_of(Format::bf16, keep, {3, 64, 32}),
               kExperts + ".3.up_proj.weight\" exists, but config.json says that there are 3 experts", "fewer");
  expect_parts(text_of(Format::bf16, keep, {4, 48, 32}), "[64, 32]; [48, 32] is expected", "other I");
  expect_parts(
      text_of(Format::bf16, [](Written& w) { w.tensors.erase(kExperts + ".2.down_proj.weight"); }, {4, 64, 32}),
      "has no tensor \"" + kExperts + ".2.down_proj.weight\"", "hole");
  expect_parts(
      text_of(Format::nvfp4, [](Written& w) { w.tensors.erase(kExperts + ".3.up_proj.input_scale"); }, {4, 64, 32}),
      kExperts + ".3.up_proj.weight\"|its input_scale is missing", "input scale of a foreign expert");
  expect_parts(text_of(Format::mxfp8,
                       [](Written& w) {
                         for (int e = 0; e < 4; ++e)
                           w.tensors[kExperts + "." + std::to_string(e) + ".down_proj.weight"] =
                               Tensor(DType::bf16, {32, 64}).zero();
                       },
                       {4, 64, 32}),
               "down_proj.weight\" is stored as bf16, but the other matrices of its experts as mxfp8", "two formats");
  expect_parts(text_of(Format::bf16,
                       [](Written& w) {
                         w.tensors = {{"x", scalar(0)}};
                       },
                       {4, 64, 32}),
               "has neither \"" + kExperts + ".0.up_proj.weight\" nor \"" + kExperts + ".gate_up_proj\"", "none");
  expect_parts(text_of(Format::bf16, keep, {0, 64, 32}), "0 experts of 64 x 32 cannot be loaded", "zero");
}

}  // namespace
}  // namespace sluice::weights
