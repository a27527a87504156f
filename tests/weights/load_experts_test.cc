// SPDX-License-Identifier: Apache-2.0
// Experts in every published checkpoint format, stored and quantised while loading: the same bytes, in every shard.
#include "load_case.h"

#include <cmath>

#include "merged_gate_up.h"
#include "weights/calibration.h"
#include "weights/pad.h"
#include "weights/requantize.h"

namespace sluice::weights {
namespace {

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
          LoaderOptions options;
          options.shard = which;
          const LoadedExperts got = load(written, options).experts(names_of(gated), {experts, inter, hidden});
          EXPECT_TRUE(same_bytes(got.weights, shard(w, which, got.format.inputs)))
              << name << " gated " << gated << " tp " << which.tp_rank << "/" << which.tp_size << " ep "
              << which.ep_rank << "/" << which.ep_size;
        }
      }
}

// Experts in place: apart where whole rows are wanted, a stack where only some columns are (the down matrices of a
// tensor-parallel rank). Stacked, packed for the CPU's kernels and quantised they give what copied ones give.
TEST_F(LoadTest, ExpertsInPlaceAreTheSameBytes) {
  const int64_t experts = 5, inter = 160, hidden = 144;
  for (const auto& [format, name] : format::kFormats)
    for (bool fused : {false, true})
      for (const Shard which : {Shard{}, Shard{2, 3, 1, 2}}) {
        if (fused && (format == Format::fp8_tensor || format == Format::nvfp4 || format == Format::fp8_block)) continue;
        Written written;
        written.config = config_for(format);
        const ExpertWeights w = random_experts(random, format, experts, inter, hidden, true, false);
        if (fused) {
          const QuantTensor gate_up = merge_gate_up({w.gate, w.up}, GateUpOrder::gate_up);
          for (const auto& [tensor, q] : {std::pair{".gate_up_proj", &gate_up}, {".down_proj", &w.down}}) {
            written.tensors[kExperts + tensor] = q->codes;
            if (!q->scales.empty()) written.tensors[kExperts + tensor + "_scale_inv"] = q->scales;
          }
        } else {
          put_experts(written, w, false);
        }
        LoaderOptions options;
        options.shard = which;
        options.nvfp4_per_token = true;
        const std::string what = fmt::format("{} fused {} tp {}", name, fused, which.tp_size);
        const ExpertWeights expected = load(written, options).experts(names_of(true), {experts, inter, hidden}).weights;
        Loader loader = load(written, options);
        const ExpertWeights got = loader.experts(names_of(true), {experts, inter, hidden}, Codes::in_place).weights;
        ASSERT_FALSE(got.gate.apart.empty()) << what;
        EXPECT_EQ(got.down.apart.empty(), which.tp_size > 1) << what;
        for (const auto& [a, b] :
             {std::pair{&got.up, &expected.up}, {&got.gate, &expected.gate}, {&got.down, &expected.down}})
          for (int64_t e = 0; e < b->experts; ++e) {
            a->begin_rows(e, 0, b->rows);
            EXPECT_EQ(std::memcmp(a->code_row(e, 0), b->code_row(e, 0), static_cast<size_t>(b->rows * b->row_bytes())),
                      0)
                << what << " expert " << e;
            a->end_rows(e, 1, b->rows);
          }
        EXPECT_TRUE(same_bytes(dequantize(got.up), dequantize(expected.up))) << what;
        const Format other = format == Format::mxfp8 ? Format::mxfp4 : Format::mxfp8;
        EXPECT_TRUE(same_bytes(quantize(live.ctx, other, got), quantize(live.ctx, other, expected))) << what;
        const ExpertWeights stacked = loader.stacked(got);
        EXPECT_TRUE(same_bytes(stacked, expected)) << what;
        EXPECT_EQ(stacked.up.file, nullptr);
        EXPECT_TRUE(stacked.up.apart.empty());
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
      LoaderOptions options;
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
    LoaderOptions options;
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
    LoaderOptions options;
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
    LoaderOptions options;
    options.online = parse_online_policy(name);
    const LoadedExperts whole = load(written, options).experts(names_of(true), {experts, inter, hidden});
    EXPECT_EQ(whole.format, options.online->experts);
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
  LoaderOptions options;
  options.online = parse_online_policy("nvfp4");
  const std::string text = error_of([&] { load(written, options).experts(names_of(true), {2, 32, 32}); });
  EXPECT_NE(text.find("nvfp4_per_token_activation"), std::string::npos) << text;
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
    LoaderOptions options;
    options.online = parse_online_policy(format);
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

}  // namespace
}  // namespace sluice::weights
