// SPDX-License-Identifier: Apache-2.0
#include "weights/scheme_reader.h"

#include <algorithm>

#include "io/quote.h"

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

// What follows reads compressed-tensors. Most keys that it writes are about how the scales were found; a key that
// changes what the codes mean, or what is computed, must be known here or refused.

[[noreturn]] void refuse_value(const io::Config& c, const char* key, std::string_view value,
                               std::string_view accepted) {
  c.refuse(key, fmt::format("is {}; accepted: {}", value, accepted), ErrorCode::unsupported);
}

// Of a group's weights or input_activations, or of kv_cache_scheme.
struct Side {
  std::string type, strategy;
  int64_t bits = 0, group_size = 0;
  bool in_groups() const { return strategy == "group" || strategy == "tensor_group"; }
};

// Absent keys have the values that compressed-tensors gives them.
Side read_side(const io::Config& c) {
  Side side;
  side.type = c.string("type", "int");
  side.bits = c.integer("num_bits", {1, 64}, 8);
  side.group_size = c.integer("group_size", {-1, 1 << 20}, 0);
  side.strategy = c.string("strategy", side.group_size > 0 ? "group" : side.group_size < 0 ? "channel" : "tensor");
  return side;
}

void require_symmetric(const io::Config& side) {
  if (!side.boolean("symmetric", true)) refuse_value(side, "symmetric", "false", "true, because no zero point is read");
}

// "group" and its alias permute the columns that share a scale (weight_g_idx); "weight" changes the calibration alone.
void require_column_order(const io::Config& weights) {
  const std::string_view accepted = "null, false, \"weight\", \"static\", because columns are read in order";
  if (!weights.is_string("actorder")) {
    if (weights.boolean("actorder", false)) refuse_value(weights, "actorder", "true", accepted);
    return;
  }
  const std::string order = weights.string("actorder");
  if (order != "weight" && order != "static") refuse_value(weights, "actorder", io::quote(order), accepted);
}

// Transforms of weights are in the stored weights already; all others would have to run with the model.
void require_no_transforms(const io::Config& quant) {
  constexpr std::string_view kAccepted = "weight_input, weight_output, because the rest would have to run in the model";
  const std::optional<io::Config> transforms = quant.find_object("transform_config");
  if (!transforms || transforms->keys().empty()) return;
  for (const auto& [name, group] : transforms->object("config_groups").members()) {
    if (!group.has("apply")) refuse_value(group, "apply", "missing", "an array of what transforms weights");
    for (const io::Config& apply : group.objects("apply")) {
      const std::string location = apply.string("location");
      if (location != "weight_input" && location != "weight_output")
        refuse_value(apply, "location", io::quote(location), kAccepted);
    }
  }
}

// "dense" is what pruned weights have that are stored like all others.
void require_dense(const io::Config& quant) {
  const std::optional<io::Config> sparsity = quant.find_object("sparsity_config");
  if (!sparsity) return;
  const std::string format = sparsity->string("format", "dense");
  if (format != "dense") refuse_value(*sparsity, "format", io::quote(format), "\"dense\"");
}

// The cache is of BF16 unless the caller wants e4m3, which takes the checkpoint's scales where there are some
// (WeightReader::cache_scale). Scales for another type mean something else.
void require_known_cache(const io::Config& quant) {
  const std::optional<io::Config> scheme = quant.find_object("kv_cache_scheme");
  if (!scheme) return;
  const Side side = read_side(*scheme);
  if (side.type != "float") refuse_value(*scheme, "type", io::quote(side.type), "\"float\"");
  if (side.bits != 8) refuse_value(*scheme, "num_bits", fmt::to_string(side.bits), "8");
  require_symmetric(*scheme);
}

void require_plain_outputs(const io::Config& group) {
  if (!group.has("output_activations")) return;
  const Side side = read_side(group.object("output_activations"));
  refuse_value(group, "output_activations", fmt::format("{} of {} bits", side.type, side.bits),
               "null, because outputs are not rounded");
}

// What a group's inputs are rounded to.
InputFormat read_inputs(const io::Config& group, Format weights) {
  if (!group.is_object("input_activations")) return InputFormat::plain;  // weight-only
  const io::Config inputs = group.object("input_activations");
  const Side side = read_side(inputs);
  const std::string_view name = info(weights).name;
  const bool nvfp4 = weights == Format::nvfp4, mx = weights == Format::mxfp8 || weights == Format::mxfp4;
  const InputFormat grouped = nvfp4 ? InputFormat::nvfp4 : mx ? InputFormat::mxfp8 : InputFormat::fp8_group;
  // "local": the block scales are dynamic, the global one is calibrated (NVFP4).
  const bool dynamic =
      inputs.is_string("dynamic") ? inputs.string("dynamic") != "false" : inputs.boolean("dynamic", false);
  const auto require = [&](bool taken, const char* key, const std::string& value, std::string_view accepted) {
    if (!taken)
      inputs.refuse(key, fmt::format("is {}; accepted with {} weights: {}", value, name, accepted),
                    ErrorCode::unsupported);
  };

  const int bits = nvfp4 ? 4 : 8, size = group_of(grouped);
  require(side.type == "float", "type", io::quote(side.type), "\"float\"");
  require(side.bits == bits, "num_bits", fmt::to_string(side.bits), fmt::to_string(bits));
  require(!side.in_groups() || side.group_size == size, "group_size", fmt::to_string(side.group_size),
          fmt::to_string(size));
  require_symmetric(inputs);
  const std::string& strategy = side.strategy;
  if (nvfp4) {
    require(side.in_groups(), "strategy", io::quote(strategy), "\"tensor_group\"");
    return grouped;
  }
  if (mx) {
    require(strategy == "group", "strategy", io::quote(strategy), "\"group\"");
    require(dynamic, "dynamic", "false", "true");
    return grouped;
  }
  if (!dynamic) {
    require(strategy == "tensor", "strategy", io::quote(strategy), "\"tensor\", as dynamic is false");
    return InputFormat::fp8_static;
  }
  require(strategy == "tensor" || strategy == "token" || strategy == "group", "strategy", io::quote(strategy),
          "\"tensor\", \"token\", \"group\"");
  // One dynamic scale per tensor would depend on which requests share a batch; one per row is at least as fine and does
  // not.
  return strategy == "group" ? grouped : InputFormat::fp8_token;
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
  require_no_transforms(quant);
  require_dense(quant);
  require_known_cache(quant);
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
  const Side side = read_side(weights);
  const auto& [type, strategy, bits, size] = side;
  const std::string described =
      fmt::format("{} weights of {} bits, strategy {}, group_size {}", type, bits, strategy, size);
  const auto refuse = [&] { refuse_method(group, "compressed-tensors " + described); };
  if (type != "float") refuse();
  require_symmetric(weights);
  require_column_order(weights);
  require_plain_outputs(group);

  ModuleFormat format;
  const bool groups = side.in_groups();
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
  format.inputs = read_inputs(group, format.weights);
  return format;
}

}  // namespace sluice::weights
