// SPDX-License-Identifier: Apache-2.0
#include "weights/scheme_reader.h"

#include <algorithm>

namespace sluice::weights {

using format::Format;
using format::InputFormat;

namespace {

constexpr char kMethods[] =
    "accepted quantisation methods: fp8 (per tensor or weight_block_size [128, 128]), mxfp8, mxfp4, modelopt "
    "(FP8, FP8_PER_CHANNEL_PER_TOKEN, FP8_PB_WO, NVFP4, W4A16_NVFP4, MXFP8, MIXED_PRECISION), compressed-tensors "
    "(float, 8 bits: tensor, channel, block or groups of 32; 4 bits: groups of 16 or 32), none";

[[noreturn]] void refuse_method(const io::Config& quant, const std::string& what) {
  fail(ErrorCode::unsupported, "{}: the checkpoint is quantised with {}; {}", quant.source(), what, kMethods);
}

ModuleFormat modelopt_format(const io::Config& quant, const std::string& algo) {
  if (algo == "FP8") return {Format::fp8_tensor, InputFormat::fp8_static};
  if (algo == "FP8_PER_CHANNEL_PER_TOKEN") return {Format::fp8_channel, InputFormat::fp8_token};
  if (algo == "FP8_PB_WO" || algo == "fp8_pb_wo") return {Format::fp8_block, InputFormat::plain};
  if (algo == "NVFP4") return {Format::nvfp4, InputFormat::nvfp4};
  if (algo == "W4A16_NVFP4") return {Format::nvfp4, InputFormat::plain};
  if (algo == "MXFP8") return {Format::mxfp8, InputFormat::mxfp8};
  if (algo == "NVFP4_AWQ")
    fail(ErrorCode::unsupported,
         "{}: quant_algo NVFP4_AWQ scales activations by pre_quant_scale before they are rounded, which no loader here "
         "does; export the model with NVFP4 instead",
         quant.source());
  refuse_method(quant, "ModelOpt's quant_algo \"" + algo + "\"");
}

// Group sizes and block sizes that a config states must be those that the format has.
void check_group_size(const io::Config& quant, const ModuleFormat& format) {
  const int group = info(format.weights).group_k;
  if (group <= 1 || !quant.has("group_size")) return;
  const int64_t stated = quant.integer("group_size", {1, 1 << 20});
  if (stated != group)
    quant.refuse("group_size", fmt::format("is {}; {} has groups of {}", stated, info(format.weights).name, group));
}

}  // namespace

QuantScheme SchemeReader::read(const io::Config& config, const std::optional<io::Config>& hf_quant_config) {
  scheme_.source_ = config.source();
  if (config.is_object("quantization_config")) {
    read_config(config.object("quantization_config"));
  } else if (config.is_object("compression_config")) {
    read_config(config.object("compression_config"));
  } else if (hf_quant_config) {
    scheme_.source_ = hf_quant_config->source();
    read_modelopt(*hf_quant_config);
  }
  if (!scheme_.quantized()) scheme_.source_.clear();
  return std::move(scheme_);
}

void SchemeReader::read_config(const io::Config& quant) {
  const std::string method = quant.string("quant_method", "modelopt");
  scheme_.method_ = method;
  if (method.starts_with("modelopt")) return read_modelopt(quant);
  if (method == "fp8") return read_fp8(quant);
  if (method == "mxfp8") return read_mx(quant, {Format::mxfp8, InputFormat::mxfp8});
  if (method == "mxfp4") return read_mx(quant, {Format::mxfp4, InputFormat::plain});
  if (method == "compressed-tensors") return read_compressed_tensors(quant);
  refuse_method(quant, "quant_method \"" + method + "\"");
}

void SchemeReader::exclude(const io::Config& quant, const io::ConfigKeys& keys) {
  for (const auto& key : keys.all()) {
    const std::string name(key);
    if (!quant.has(name)) continue;
    for (const std::string& pattern : quant.strings(name))
      scheme_.excluded_.emplace_back(pattern, quant.source() + ": " + name);
  }
}

void SchemeReader::read_modelopt(const io::Config& outer) {
  const io::Config quant = outer.is_object("quantization") ? outer.object("quantization") : outer;
  const std::string algo = quant.string("quant_algo", "");
  if (algo.empty()) {
    scheme_.method_ = "none";
    return;  // ModelOpt writes null for a model that was not quantised
  }
  scheme_.method_ = "modelopt " + algo;
  exclude(quant, {"exclude_modules", "ignore"});
  if (algo == "MIXED_PRECISION") return read_mixed(quant);
  const ModuleFormat format = modelopt_format(quant, algo);
  check_group_size(quant, format);
  scheme_.rules_.push_back({{}, format});
}

void SchemeReader::read_mixed(const io::Config& quant) {
  for (const auto& [module, layer] : quant.object("quantized_layers").members()) {
    const ModuleFormat format = modelopt_format(layer, layer.string("quant_algo"));
    check_group_size(layer, format);
    scheme_.layers_.push_back({normal_name(module), format});
  }
  std::sort(scheme_.layers_.begin(), scheme_.layers_.end(),
            [](const auto& a, const auto& b) { return a.module < b.module; });
}

void SchemeReader::read_fp8(const io::Config& quant) {
  const std::string activation = quant.string("activation_scheme", "dynamic");
  if (activation != "dynamic" && activation != "static")
    refuse_method(quant, "fp8 and activation_scheme \"" + activation + "\" (accepted: dynamic, static)");
  exclude(quant, {"modules_to_not_convert", "ignored_layers"});
  if (!quant.has("weight_block_size")) {
    scheme_.method_ = "fp8 per tensor";
    scheme_.rules_.push_back(
        {{}, {Format::fp8_tensor, activation == "static" ? InputFormat::fp8_static : InputFormat::fp8_token}});
    return;
  }
  const auto block = quant.integers("weight_block_size", {1, 1 << 20});
  if (block == std::vector<int64_t>{1, 32}) return read_mx(quant, {Format::mxfp8, InputFormat::mxfp8});
  if (block != std::vector<int64_t>{128, 128})
    refuse_method(quant, fmt::format("fp8 and weight_block_size [{}]", fmt::join(block, ", ")));
  if (activation == "static")
    refuse_method(quant, "fp8, weight_block_size [128, 128] and activation_scheme \"static\" (accepted: dynamic)");
  scheme_.method_ = "fp8 in blocks";
  scheme_.rules_.push_back({{}, {Format::fp8_block, InputFormat::fp8_group}});
}

void SchemeReader::read_mx(const io::Config& quant, ModuleFormat format) {
  // weight_block_size is not looked at: published MXFP8 checkpoints also say other things, and the format is [1, 32]
  // by definition. A scale tensor of another shape is refused when it is read.
  scheme_.method_ = std::string(info(format.weights).name);
  exclude(quant, {"modules_to_not_convert", "ignored_layers"});
  scheme_.rules_.push_back({{}, format});
}

void SchemeReader::read_compressed_tensors(const io::Config& quant) {
  exclude(quant, "ignore");
  for (const auto& [name, group] : quant.object("config_groups").members()) {
    QuantScheme::Rule rule;
    rule.format = read_group(group);
    bool every_linear = false;
    for (const std::string& target : group.strings("targets")) {
      // A class name. Experts that are one fused module count as linears here too.
      const bool is_class = !target.starts_with("re:") && target.find('.') == std::string::npos && !target.empty() &&
                            target[0] >= 'A' && target[0] <= 'Z';
      if (is_class && target != "Linear")
        group.refuse("targets", "holds \"" + target + "\"; accepted: Linear, module names, re:<regular expression>");
      every_linear |= is_class;
      if (!is_class) rule.targets.emplace_back(target, quant.source() + ": config_groups targets");
    }
    if (every_linear) rule.targets.clear();
    if (!every_linear && rule.targets.empty()) continue;
    scheme_.method_ = "compressed-tensors " + std::string(info(rule.format.weights).name);
    scheme_.rules_.push_back(std::move(rule));
  }
  // "Linear" is the catch-all; names come first whatever the order in the file.
  std::stable_partition(scheme_.rules_.begin(), scheme_.rules_.end(),
                        [](const QuantScheme::Rule& rule) { return !rule.targets.empty(); });
}

ModuleFormat SchemeReader::read_group(const io::Config& group) {
  const io::Config weights = group.object("weights");
  const std::string type = weights.string("type", "int"), strategy = weights.string("strategy", "tensor");
  const int64_t bits = weights.integer("num_bits", {1, 64}, 8);
  const int64_t size = weights.integer("group_size", {-1, 1 << 20}, 0);
  const std::string described =
      fmt::format("{} weights of {} bits, strategy {}, group_size {}", type, bits, strategy, size);
  const auto refuse = [&] { refuse_method(group, "compressed-tensors " + described); };
  if (type != "float") refuse();

  ModuleFormat format;
  const bool groups = strategy == "group" || strategy == "tensor_group";
  if (bits == 8 && strategy == "tensor") {
    format.weights = Format::fp8_tensor;
  } else if (bits == 8 && strategy == "channel") {
    format.weights = Format::fp8_channel;
  } else if (bits == 8 && strategy == "block") {
    format.weights = Format::fp8_block;
    const auto block = weights.integers("block_structure", {1, 1 << 20});
    if (block != std::vector<int64_t>{128, 128})
      refuse_method(group, fmt::format("compressed-tensors blocks of [{}]", fmt::join(block, ", ")));
  } else if (bits == 8 && groups && size == 32) {
    format.weights = Format::mxfp8;
  } else if (bits == 4 && groups && size == 16) {
    format.weights = Format::nvfp4;
  } else if (bits == 4 && groups && size == 32) {
    format.weights = Format::mxfp4;
  } else {
    refuse();
  }

  if (!group.is_object("input_activations")) return format;  // weight-only
  const io::Config inputs = group.object("input_activations");
  // "local": the block scales are dynamic, the global one is calibrated (NVFP4).
  const bool dynamic =
      inputs.is_string("dynamic") ? inputs.string("dynamic") != "false" : inputs.boolean("dynamic", false);
  const std::string input_strategy = inputs.string("strategy", "tensor");
  const int64_t input_bits = inputs.integer("num_bits", {1, 64}, 8);
  switch (format.weights) {
    case Format::nvfp4:
      format.inputs = InputFormat::nvfp4;
      break;
    case Format::mxfp4:
      format.inputs = input_bits == 8 ? InputFormat::mxfp8 : InputFormat::plain;
      if (input_bits == 4) refuse_method(group, "compressed-tensors MXFP4 weights with 4-bit MXFP4 activations");
      break;
    case Format::mxfp8:
      format.inputs = InputFormat::mxfp8;
      break;
    default:
      if (!dynamic && input_strategy != "tensor")
        refuse_method(group,
                      "compressed-tensors inputs with calibrated scales per " + input_strategy + " (accepted: tensor)");
      // One dynamic scale per tensor would depend on which requests share a batch; one per row is at least as fine and
      // does not.
      format.inputs = !dynamic                    ? InputFormat::fp8_static
                      : input_strategy == "group" ? InputFormat::fp8_group
                                                  : InputFormat::fp8_token;
  }
  return format;
}

}  // namespace sluice::weights
