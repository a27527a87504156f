// SPDX-License-Identifier: Apache-2.0
#include "weights/quant_scheme.h"

#include "random_weights.h"
#include "tests/io/expect_error.h"

namespace sluice::weights {
namespace {

using format::Format;
using format::InputFormat;

bool matches(std::string_view pattern, std::string_view module) { return NamePattern(pattern, "list").matches(module); }

TEST(NamePattern, GlobsExactNamesParentsAndTails) {
  EXPECT_TRUE(matches("lm_head", "lm_head"));
  EXPECT_TRUE(matches("lm_head", "model.lm_head"));
  EXPECT_TRUE(matches("model.lm_head", "lm_head"));
  EXPECT_TRUE(matches("model.layers.1", "model.layers.1.mlp.gate"));
  EXPECT_FALSE(matches("model.layers.1", "model.layers.10.mlp.gate"));
  EXPECT_TRUE(matches("mlp.gate", "model.layers.7.mlp.gate"));
  EXPECT_FALSE(matches("mlp.gate", "model.layers.7.mlp.gate_proj"));
  EXPECT_TRUE(matches("model.layers.*.mlp.gate", "model.layers.11.mlp.gate"));
  EXPECT_TRUE(matches("model.layers.3.self_attn*", "model.layers.3.self_attn.q_proj"));
  EXPECT_FALSE(matches("model.layers.3.self_attn*", "model.layers.30.self_attn.q_proj"));
  EXPECT_TRUE(matches("*.mixer.conv1d", "backbone.layers.0.mixer.conv1d"));
  EXPECT_TRUE(matches("*self_attn*", "model.layers.3.self_attn.q_proj"));
  EXPECT_TRUE(matches("*q_a_proj*", "model.layers.3.self_attn.q_a_proj"));
  EXPECT_TRUE(matches("mlp*", "model.layers.3.mlp.up_proj"));  // ModelOpt: one dotted part
  EXPECT_FALSE(matches("", "model"));
  EXPECT_TRUE(matches("*", "anything.at.all"));
  // A family's other prefix.
  EXPECT_TRUE(matches("model.layers.4.mixer.in_proj", "backbone.layers.4.mixer.in_proj"));
  EXPECT_TRUE(matches("backbone.layers.4*", "backbone.layers.4.mixer.in_proj"));
  EXPECT_TRUE(matches("language_model.model.layers.4.mlp", "model.layers.4.mlp.up_proj"));
  EXPECT_TRUE(matches("model.language_model.layers.4.mlp", "model.layers.4.mlp.up_proj"));
}

TEST(NamePattern, RegularExpressionsMatchFromTheBeginning) {
  EXPECT_TRUE(matches("re:.*mlp\\.gate$", "model.layers.7.mlp.gate"));
  EXPECT_FALSE(matches("re:.*mlp\\.gate$", "model.layers.7.mlp.gate_proj"));
  EXPECT_TRUE(matches("re:model\\.layers\\.\\d+\\.self_attn", "model.layers.12.self_attn.q_proj"));
  EXPECT_FALSE(matches("re:self_attn", "model.layers.12.self_attn.q_proj"));
  EXPECT_TRUE(matches("re:(a|lm_)head", "lm_head"));
  EXPECT_NE(error_of([] { matches("re:(", "x"); }).find("list"), std::string::npos);
}

QuantScheme detect(const std::string& quantization_config, const std::string& key = "quantization_config") {
  return QuantScheme::detect(io::Config::parse("{\"" + key + "\": " + quantization_config + "}", "config.json"));
}
QuantScheme from_root_file(const std::string& text) {
  return QuantScheme::detect(io::Config::parse("{}", "config.json"), io::Config::parse(text, "hf_quant_config.json"));
}

constexpr ModuleFormat kBf16{};
const std::string kQ = "model.layers.0.self_attn.q_proj", kExpert = "model.layers.3.mlp.experts.17.up_proj";

TEST(QuantScheme, UnquantisedCheckpoint) {
  const QuantScheme s = QuantScheme::detect(io::Config::parse("{}", "config.json"));
  EXPECT_FALSE(s.quantized());
  EXPECT_EQ(s.of(kQ), kBf16);
  EXPECT_EQ(s.method(), "none");
  EXPECT_FALSE(
      from_root_file(R"({"producer": {"name": "modelopt"}, "quantization": {"quant_algo": null}})").quantized());
}

TEST(QuantScheme, Fp8) {
  // As transformers writes it for Qwen3-30B-A3B-FP8.
  const QuantScheme block = detect(R"({"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8",
      "modules_to_not_convert": ["lm_head", "model.layers.0.mlp.gate", "model.layers.0.input_layernorm"],
      "weight_block_size": [128, 128]})");
  EXPECT_EQ(block.of(kQ), (ModuleFormat{Format::fp8_block, InputFormat::fp8_group}));
  EXPECT_EQ(block.of("model.layers.0.mlp.gate"), kBf16);
  EXPECT_EQ(block.of("model.layers.0.mlp.experts.0.gate_proj").weights, Format::fp8_block);
  EXPECT_EQ(block.of("lm_head"), kBf16);
  EXPECT_EQ(detect(R"({"quant_method": "fp8", "activation_scheme": "static", "ignored_layers": ["lm_head"]})").of(kQ),
            (ModuleFormat{Format::fp8_tensor, InputFormat::fp8_static}));
  EXPECT_EQ(detect(R"({"quant_method": "fp8"})").of(kQ), (ModuleFormat{Format::fp8_tensor, InputFormat::fp8_token}));
  io::expect_error(ErrorCode::unsupported, {"config.json", "weight_block_size [64, 128]", "[128, 128]"},
                   [] { detect(R"({"quant_method": "fp8", "weight_block_size": [64, 128]})"); });
  io::expect_error(ErrorCode::unsupported, {"config.json", "activation_scheme \"offline\"", "dynamic, static"},
                   [] { detect(R"({"quant_method": "fp8", "activation_scheme": "offline"})"); });
  io::expect_error(ErrorCode::unsupported, {"config.json", "activation_scheme \"static\"", "dynamic"}, [] {
    detect(R"({"quant_method": "fp8", "activation_scheme": "static", "weight_block_size": [128, 128]})");
  });
}

TEST(QuantScheme, Mx) {
  const ModuleFormat mxfp8{Format::mxfp8, InputFormat::mxfp8};
  EXPECT_EQ(detect(R"({"quant_method": "mxfp8", "activation_scheme": "dynamic", "weight_block_size": [1, 32],
                       "scale_fmt": "ue8m0"})")
                .of(kQ),
            mxfp8);
  EXPECT_EQ(detect(R"({"quant_method": "mxfp8", "weight_block_size": [128, 128]})").of(kQ), mxfp8);
  EXPECT_EQ(detect(R"({"quant_method": "fp8", "weight_block_size": [1, 32]})").of(kQ), mxfp8);
  // As published with gpt-oss.
  const QuantScheme oss = detect(R"({"modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router",
      "model.embed_tokens", "lm_head"], "quant_method": "mxfp4"})");
  EXPECT_EQ(oss.of("model.layers.11.mlp.experts"), (ModuleFormat{Format::mxfp4, InputFormat::plain}));
  EXPECT_EQ(oss.of("model.layers.11.self_attn.q_proj"), kBf16);
  EXPECT_EQ(oss.of("model.layers.11.mlp.router"), kBf16);
}

TEST(QuantScheme, ModelOpt) {
  const QuantScheme nested = from_root_file(R"({"producer": {"name": "modelopt", "version": "0.33.0"},
      "quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8", "group_size": 16,
                       "exclude_modules": ["lm_head", "model.layers.*.self_attn*", "model.layers.0.mlp.gate"]}})");
  EXPECT_EQ(nested.of(kExpert), (ModuleFormat{Format::nvfp4, InputFormat::nvfp4}));
  EXPECT_EQ(nested.of(kQ), kBf16);
  EXPECT_EQ(nested.of("model.layers.0.mlp.gate"), kBf16);
  EXPECT_EQ(nested.method(), "modelopt NVFP4");
  EXPECT_EQ(nested.source(), "hf_quant_config.json");
  const QuantScheme flat = detect(R"({"config_groups": {"group_0": {"targets": ["Linear"]}}, "ignore": ["lm_head"],
      "quant_algo": "FP8", "kv_cache_scheme": {"dynamic": false, "num_bits": 8, "type": "float"},
      "producer": {"name": "modelopt"}, "quant_method": "modelopt"})");
  EXPECT_EQ(flat.of(kQ), (ModuleFormat{Format::fp8_tensor, InputFormat::fp8_static}));
  EXPECT_EQ(flat.of("lm_head"), kBf16);
  EXPECT_EQ(detect(R"({"quant_algo": "MXFP8", "exclude_modules": []})").of(kQ),
            (ModuleFormat{Format::mxfp8, InputFormat::mxfp8}));  // no quant_method: ModelOpt
  EXPECT_EQ(detect(R"({"quant_method": "modelopt", "quantization": {"quant_algo": "W4A16_NVFP4"}})").of(kQ),
            (ModuleFormat{Format::nvfp4, InputFormat::plain}));
  EXPECT_EQ(detect(R"({"quant_algo": "FP8_PER_CHANNEL_PER_TOKEN"})", "compression_config").of(kQ),
            (ModuleFormat{Format::fp8_channel, InputFormat::fp8_token}));
  EXPECT_NE(error_of([] { detect(R"({"quant_algo": "NVFP4_AWQ"})"); }).find("pre_quant_scale"), std::string::npos);
  EXPECT_EQ(error_of([] { detect(R"({"quant_algo": "NVFP4", "group_size": 32})"); }),
            "config.json: quantization_config.group_size is 32; nvfp4 has groups of 16");
}

TEST(QuantScheme, ModelOptMixedPrecision) {
  const QuantScheme s = from_root_file(R"({"quantization": {"quant_algo": "MIXED_PRECISION", "quantized_layers": {
      "backbone.layers.0.mixer.in_proj": {"quant_algo": "FP8"},
      "backbone.layers.1.mixer.experts.0.up_proj": {"quant_algo": "NVFP4", "group_size": 16},
      "backbone.layers.1.mixer.experts.0.down_proj": {"quant_algo": "NVFP4", "group_size": 16},
      "backbone.layers.11.mixer.experts": {"quant_algo": "W4A16_NVFP4"},
      "model.layers.2.mixer.q_proj": {"quant_algo": "MXFP8"}}}})");
  const ModuleFormat fp8{Format::fp8_tensor, InputFormat::fp8_static}, nvfp4{Format::nvfp4, InputFormat::nvfp4};
  EXPECT_EQ(s.of("backbone.layers.0.mixer.in_proj"), fp8);
  EXPECT_EQ(s.of("backbone.layers.0.mixer.out_proj"), kBf16);
  EXPECT_EQ(s.of("backbone.layers.1.mixer.experts.0.up_proj"), nvfp4);
  EXPECT_EQ(s.of("backbone.layers.1.mixer.experts"), nvfp4);  // first entry below
  EXPECT_EQ(s.of("backbone.layers.11.mixer.experts.5.up_proj"), (ModuleFormat{Format::nvfp4, InputFormat::plain}));
  EXPECT_EQ(s.of("backbone.layers.2.mixer.q_proj"), (ModuleFormat{Format::mxfp8, InputFormat::mxfp8}));
  EXPECT_EQ(s.of("lm_head"), kBf16);
}

std::string group(const std::string& weights, const std::string& inputs, const std::string& targets = "\"Linear\"") {
  return R"({"targets": [)" + targets + R"(], "weights": )" + weights + R"(, "input_activations": )" + inputs + "}";
}
QuantScheme compressed(const std::string& groups, const std::string& ignore = "\"lm_head\"") {
  return detect(R"({"quant_method": "compressed-tensors", "format": "float-quantized", "config_groups": )" + groups +
                R"(, "ignore": [)" + ignore + "]}");
}

TEST(QuantScheme, CompressedTensors) {
  const auto one = [](const std::string& weights, const std::string& inputs) {
    return compressed("{\"group_0\": " + group(weights, inputs) + "}").of(kQ);
  };
  const std::string dynamic = R"({"dynamic": true, "num_bits": 8, "strategy": "token", "type": "float"})";
  const std::string fixed = R"({"dynamic": false, "num_bits": 8, "strategy": "tensor", "type": "float"})";
  EXPECT_EQ(one(R"({"num_bits": 8, "strategy": "channel", "type": "float"})", dynamic),
            (ModuleFormat{Format::fp8_channel, InputFormat::fp8_token}));
  EXPECT_EQ(one(R"({"num_bits": 8, "strategy": "tensor", "type": "float"})", fixed),
            (ModuleFormat{Format::fp8_tensor, InputFormat::fp8_static}));
  EXPECT_EQ(one(R"({"num_bits": 8, "strategy": "tensor", "type": "float"})", "null"),
            (ModuleFormat{Format::fp8_tensor, InputFormat::plain}));
  EXPECT_EQ(one(R"({"num_bits": 8, "strategy": "block", "type": "float", "block_structure": [128, 128]})",
                R"({"dynamic": true, "num_bits": 8, "strategy": "group", "group_size": 128, "type": "float"})"),
            (ModuleFormat{Format::fp8_block, InputFormat::fp8_group}));
  EXPECT_EQ(one(R"({"num_bits": 8, "strategy": "group", "group_size": 32, "type": "float"})",
                R"({"dynamic": true, "num_bits": 8, "strategy": "group", "group_size": 32, "type": "float"})"),
            (ModuleFormat{Format::mxfp8, InputFormat::mxfp8}));
  EXPECT_EQ(
      one(R"({"num_bits": 4, "strategy": "tensor_group", "group_size": 16, "type": "float"})",
          R"({"dynamic": "local", "num_bits": 4, "strategy": "tensor_group", "group_size": 16, "type": "float"})"),
      (ModuleFormat{Format::nvfp4, InputFormat::nvfp4}));
  EXPECT_EQ(one(R"({"num_bits": 4, "strategy": "group", "group_size": 32, "type": "float"})", "null"),
            (ModuleFormat{Format::mxfp4, InputFormat::plain}));

  const QuantScheme s = compressed(
      "{\"group_0\": " + group(R"({"num_bits": 8, "strategy": "channel", "type": "float"})", dynamic) +
          ", \"group_1\": " +
          group(R"({"num_bits": 8, "strategy": "tensor", "type": "float"})", fixed, R"("re:.*experts.*")") + "}",
      R"("lm_head", "re:.*mlp.gate$")");
  EXPECT_EQ(s.of(kExpert).weights, Format::fp8_tensor);  // the named group, though it comes second
  EXPECT_EQ(s.of(kQ).weights, Format::fp8_channel);
  EXPECT_EQ(s.of("model.layers.0.mlp.gate"), kBf16);

  EXPECT_NE(error_of([&] {
              one(R"({"num_bits": 4, "strategy": "group", "group_size": 128, "type": "int"})", "null");
            }).find("compressed-tensors int weights of 4 bits, strategy group, group_size 128"),
            std::string::npos);
  EXPECT_NE(error_of([&] {
              compressed("{\"g\": " +
                         group(R"({"num_bits": 8, "strategy": "tensor", "type": "float"})", "null", "\"Conv2d\"") +
                         "}");
            }).find("holds \"Conv2d\"; accepted: Linear"),
            std::string::npos);
}

TEST(QuantScheme, UnknownMethodsNameWhatIsAccepted) {
  const std::string text = error_of([] { detect(R"({"quant_method": "gptq", "bits": 4})"); });
  EXPECT_EQ(text.substr(0, text.find(';')), "config.json: the checkpoint is quantised with quant_method \"gptq\"");
  for (const char* accepted : {"fp8", "mxfp8", "mxfp4", "NVFP4", "MIXED_PRECISION", "compressed-tensors"})
    EXPECT_NE(text.find(accepted), std::string::npos) << accepted;
  EXPECT_NE(error_of([] { detect(R"({"quant_algo": "INT4_AWQ"})"); }).find("ModelOpt's quant_algo \"INT4_AWQ\""),
            std::string::npos);
  EXPECT_EQ(error_of([] { detect(R"({"quant_method": 8})"); }),
            "config.json: quantization_config.quant_method is 8; it must be a string");
}

}  // namespace
}  // namespace sluice::weights
