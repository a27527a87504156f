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

// A configuration's pattern is the file's fault, also when only a name shows that it is too slow.
TEST(QuantScheme, PatternsThatBacktrackAreTheFiles) {
  for (const char* ignore : {"re:(", "re:([a-z0-9._]+)+[A-Z]"})
    io::expect_error(ErrorCode::bad_file, {"config.json: ignore", ignore + 3}, [&] {
      const QuantScheme s = QuantScheme::detect(io::Config::parse(
          R"({"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": [")" +
              std::string(ignore) + R"("]}})",
          "config.json"));
      s.of("model.layers.0.mlp.experts.127.gate_up_proj");
    });
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

// One side of a group with all keys that llm-compressor writes; `numbers` are those that differ between its schemes.
std::string side(const std::string& numbers, const std::string& dynamic) {
  return "{" + numbers + R"(, "type": "float", "symmetric": true, "dynamic": )" + dynamic +
         R"(, "actorder": null, "observer": "minmax", "observer_kwargs": {"averaging_constant": 0.01},
            "scale_dtype": null, "zp_dtype": null})";
}
std::string llm_compressor(const std::string& weights, const std::string& inputs, const std::string& more = "") {
  return R"({"config_groups": {"group_0": {"format": null, "input_activations": )" + inputs +
         R"(, "output_activations": null, "targets": ["Linear"], "weights": )" + weights +
         R"(}}, "format": "float-quantized", "global_compression_ratio": null, "ignore": ["lm_head"],
          "quant_method": "compressed-tensors", "quantization_status": "compressed", "version": "0.15.0")" +
         more + "}";
}
const std::string kTensor = R"("num_bits": 8, "strategy": "tensor", "group_size": null, "block_structure": null)";
const std::string kChannel = R"("num_bits": 8, "strategy": "channel", "group_size": null, "block_structure": null)";
const std::string kToken = R"("num_bits": 8, "strategy": "token", "group_size": null, "block_structure": null)";
const std::string kBlock = R"("num_bits": 8, "strategy": "block", "block_structure": [128, 128], "group_size": null)";
const std::string kGroup128 = R"("num_bits": 8, "strategy": "group", "group_size": 128)";
const std::string kGroup32 = R"("num_bits": 8, "strategy": "group", "group_size": 32)";
const std::string kFours16 = R"("num_bits": 4, "strategy": "tensor_group", "group_size": 16)";
const std::string kFours32 = R"("num_bits": 4, "strategy": "group", "group_size": 32)";

// The presets of compressed-tensors 0.15 (quant_scheme.py) with float weights.
TEST(QuantScheme, CompressedTensorsPresets) {
  const auto read = [](const std::string& weights, const std::string& inputs) {
    return detect(llm_compressor(side(weights, "false"), inputs)).of(kQ);
  };
  EXPECT_EQ(read(kTensor, side(kTensor, "false")), (ModuleFormat{Format::fp8_tensor, InputFormat::fp8_static}));
  EXPECT_EQ(read(kChannel, side(kToken, "true")), (ModuleFormat{Format::fp8_channel, InputFormat::fp8_token}));
  EXPECT_EQ(read(kBlock, side(kGroup128, "true")), (ModuleFormat{Format::fp8_block, InputFormat::fp8_group}));
  EXPECT_EQ(read(kFours16, side(kFours16, "\"local\"")), (ModuleFormat{Format::nvfp4, InputFormat::nvfp4}));
  EXPECT_EQ(read(kFours16, "null"), (ModuleFormat{Format::nvfp4, InputFormat::plain}));
  EXPECT_EQ(read(kFours32, "null"), (ModuleFormat{Format::mxfp4, InputFormat::plain}));
  EXPECT_EQ(read(kGroup32, side(kGroup32, "true")), (ModuleFormat{Format::mxfp8, InputFormat::mxfp8}));
  EXPECT_EQ(read(kGroup32, "null"), (ModuleFormat{Format::mxfp8, InputFormat::plain}));
}

TEST(QuantScheme, CompressedTensorsKeysWithoutEffect) {
  for (const char* more :
       {R"(, "transform_config": {}, "sparsity_config": {}, "kv_cache_scheme": null)",
        R"(, "transform_config": null, "sparsity_config": null)", R"(, "transform_config": {"config_groups": {}})",
        R"(, "sparsity_config": {"format": "dense", "global_sparsity": 0.14, "ignore": [], "targets": [],
             "registry_requires_subclass": false, "sparsity_structure": "2:4"})",
        R"(, "kv_cache_scheme": {"num_bits": 8, "type": "float", "strategy": "tensor", "symmetric": true,
             "dynamic": false, "observer": "minmax", "group_size": null})",
        // SpinQuant's rotations, which are in the weights.
        R"(, "transform_config": {"config_groups": {"R1": {"type": "hadamard", "head_dim": null, "apply": [
             {"targets": ["re:.*o_proj$"], "location": "weight_output", "inverse": false, "ignore": []},
             {"targets": ["re:.*q_proj$"], "location": "weight_input", "inverse": true, "ignore": []}]}}})"})
    EXPECT_EQ(detect(llm_compressor(side(kChannel, "false"), side(kToken, "true"), more)).of(kQ),
              (ModuleFormat{Format::fp8_channel, InputFormat::fp8_token}))
        << more;
  for (const char* order : {"null", "false", "\"weight\"", "\"static\""})
    EXPECT_EQ(detect(llm_compressor(R"({"num_bits": 4, "strategy": "group", "group_size": 32, "type": "float",
                                        "actorder": )" +
                                        std::string(order) + "}",
                                    "null"))
                  .of(kQ)
                  .weights,
              Format::mxfp4)
        << order;
}

TEST(QuantScheme, CompressedTensorsKeysThatChangeNumbersAreRefused) {
  const std::string channel = side(kChannel, "false"), token = side(kToken, "true"), fours = side(kFours16, "false");
  const auto with = [](std::string text, const std::string& key, const std::string& value) {
    const size_t at = text.find("\"" + key + "\": ");
    EXPECT_NE(at, text.npos) << key;
    return text.replace(at, text.find_first_of(",}", at) - at, "\"" + key + "\": " + value);
  };
  const std::string config = "config.json: quantization_config.", group = config + "config_groups.group_0.";
  const auto expect_refused = [](const std::string& text, const std::string& sentence) {
    io::expect_error(ErrorCode::unsupported, {sentence}, [&] { detect(text); });
  };
  const auto refused_inputs = [&](const std::string& weights, const std::string& inputs, const std::string& sentence) {
    expect_refused(llm_compressor(weights, inputs), group + "input_activations." + sentence);
  };
  refused_inputs(channel, with(token, "type", "\"int\""),
                 "type is \"int\"; accepted with fp8_channel weights: \"float\"");
  refused_inputs(channel, R"({"num_bits": 8, "dynamic": true, "strategy": "token"})", "type is \"int\"");
  refused_inputs(channel, with(token, "num_bits", "4"), "num_bits is 4; accepted with fp8_channel weights: 8");
  refused_inputs(channel, with(token, "num_bits", "16"), "num_bits is 16; accepted with fp8_channel weights: 8");
  refused_inputs(channel, with(token, "symmetric", "false"), "symmetric is false; accepted: true");
  refused_inputs(channel, with(token, "dynamic", "false"),
                 "strategy is \"token\"; accepted with fp8_channel weights: \"tensor\", as dynamic is false");
  refused_inputs(channel, with(token, "strategy", "\"channel\""),
                 "strategy is \"channel\"; accepted with fp8_channel weights: \"tensor\", \"token\", \"group\"");
  refused_inputs(side(kBlock, "false"), with(side(kGroup128, "true"), "group_size", "64"),
                 "group_size is 64; accepted with fp8_block weights: 128");
  refused_inputs(side(kBlock, "false"), R"({"num_bits": 8, "type": "float", "dynamic": true, "group_size": 64})",
                 "group_size is 64");  // no strategy: that of a group size
  refused_inputs(fours, side(kToken, "true"), "num_bits is 8; accepted with nvfp4 weights: 4");
  refused_inputs(fours, side(kFours32, "true"), "group_size is 32; accepted with nvfp4 weights: 16");
  refused_inputs(fours, with(side(kFours16, "true"), "strategy", "\"token\""),
                 "strategy is \"token\"; accepted with nvfp4 weights: \"tensor_group\"");
  refused_inputs(side(kFours32, "false"), side(kFours32, "true"), "num_bits is 4; accepted with mxfp4 weights: 8");
  refused_inputs(side(kFours32, "false"), token, "strategy is \"token\"; accepted with mxfp4 weights: \"group\"");
  refused_inputs(side(kGroup32, "false"), side(kGroup128, "true"),
                 "group_size is 128; accepted with mxfp8 weights: 32");
  refused_inputs(side(kGroup32, "false"), side(kGroup32, "false"),
                 "dynamic is false; accepted with mxfp8 weights: true");

  expect_refused(llm_compressor(with(channel, "symmetric", "false"), "null"),
                 group + "weights.symmetric is false; accepted: true");
  for (const char* order : {"\"group\"", "\"dynamic\"", "true"})
    expect_refused(llm_compressor(with(side(kFours32, "false"), "actorder", order), "null"),
                   group + "weights.actorder is " + order + "; accepted: null");
  expect_refused(
      R"({"quant_method": "compressed-tensors", "config_groups": {"group_0": {"targets": ["Linear"], "weights": )" +
          channel + R"(, "output_activations": )" + token + "}}}",
      group + "output_activations is float of 8 bits; accepted: null");

  const auto refused_key = [&](const std::string& more, const std::string& sentence) {
    expect_refused(llm_compressor(channel, token, ", " + more), config + sentence);
  };
  refused_key(R"("sparsity_config": {"format": "sparse-24-bitmask", "sparsity_structure": "2:4"})",
              "sparsity_config.format is \"sparse-24-bitmask\"; accepted: \"dense\"");
  refused_key(R"("kv_cache_scheme": {"num_bits": 8, "type": "int"})",
              "kv_cache_scheme.type is \"int\"; accepted: \"float\"");
  refused_key(R"("kv_cache_scheme": {"num_bits": 4, "type": "float"})", "kv_cache_scheme.num_bits is 4; accepted: 8");
  refused_key(R"("transform_config": {"config_groups": {"u": {"type": "hadamard"}}})",
              "transform_config.config_groups.u.apply is missing");
  for (const char* location : {"input", "output", "k_cache", "q_attn"})
    refused_key(R"("transform_config": {"config_groups": {"u": {"type": "hadamard", "apply": [
                     {"targets": ["Linear"], "location": "weight_input"},
                     {"targets": ["Linear"], "location": ")" +
                    std::string(location) + "\"}]}}}",
                "transform_config.config_groups.u.apply[1].location is \"" + std::string(location) +
                    "\"; accepted: weight_input, weight_output");
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
