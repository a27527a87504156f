// SPDX-License-Identifier: Apache-2.0
#include "weights/export_format.h"

#include <algorithm>

#include "io/json_text.h"

namespace sluice::weights {

using format::Format;
using format::InputFormat;
using io::JsonValue;

namespace {

enum class Dialect : uint8_t { none, fp8, mxfp8, modelopt, compressed_tensors };

struct ExportFormat {
  ModuleFormat format;
  Dialect dialect;         // of a checkpoint that has no other format
  std::string_view algo;   // ModelOpt's quant_algo; empty: it has none
  std::string_view group;  // the format of a group of compressed-tensors; empty: not written there
};

constexpr ExportFormat kExportFormats[] = {
    {{Format::bf16, InputFormat::plain}, Dialect::none, "", ""},
    // Not quant_method "fp8": transformers reads that as 128x128 blocks unless the config says otherwise, and expects
    // another name of the scale than the servers do.
    {{Format::fp8_tensor, InputFormat::fp8_token}, Dialect::compressed_tensors, "", "float-quantized"},
    {{Format::fp8_tensor, InputFormat::fp8_static}, Dialect::modelopt, "FP8", ""},
    {{Format::fp8_channel, InputFormat::fp8_token},
     Dialect::compressed_tensors,
     "FP8_PER_CHANNEL_PER_TOKEN",
     "float-quantized"},
    {{Format::fp8_block, InputFormat::fp8_group}, Dialect::fp8, "", ""},
    {{Format::mxfp8, InputFormat::mxfp8}, Dialect::mxfp8, "MXFP8", "mxfp8-quantized"},
    {{Format::nvfp4, InputFormat::nvfp4}, Dialect::modelopt, "NVFP4", ""},
    {{Format::nvfp4, InputFormat::plain}, Dialect::modelopt, "W4A16_NVFP4", ""},
    {{Format::mxfp4, InputFormat::plain}, Dialect::compressed_tensors, "", "mxfp4-pack-quantized"},
};

// For sentences: the formats of which `takes(row)` holds.
template <class F>
std::string formats_that(F&& takes) {
  std::string list;
  for (const ExportFormat& s : kExportFormats)
    if (takes(s))
      list += fmt::format("{}{} with {} inputs", list.empty() ? "" : ", ", info(s.format.weights).name,
                          name_of(format::kInputFormats, s.format.inputs));
  return list;
}

const ExportFormat& export_format_of(const ModuleFormat& format) {
  for (const ExportFormat& s : kExportFormats)
    if (s.format == format) return s;
  fail(ErrorCode::unsupported, "no published checkpoint format holds {} weights with {} inputs; accepted: {}",
       info(format.weights).name, name_of(format::kInputFormats, format.inputs),
       formats_that([](const ExportFormat&) { return true; }));
}

// A part of a checkpoint with its format; `name` for sentences.
struct Part {
  std::string_view name;
  ModuleFormat format;
};
// Those that are quantised: experts, the rest, the head.
std::vector<Part> quantized_parts(const OnlinePolicy& f) {
  std::vector<Part> parts{{"experts", f.experts}, {"other linears", f.rest}, {"the head", f.head}};
  std::erase_if(parts, [](const Part& p) { return p.format == ModuleFormat{}; });
  return parts;
}
bool is_mixed(const OnlinePolicy& f) {
  const std::vector<Part> parts = quantized_parts(f);
  return std::any_of(parts.begin(), parts.end(), [&](const Part& p) { return p.format != parts[0].format; });
}
// The only format, unless is_mixed(); BF16 where nothing is quantised.
ModuleFormat single(const OnlinePolicy& f) {
  const std::vector<Part> parts = quantized_parts(f);
  return parts.empty() ? ModuleFormat{} : parts[0].format;
}

// Of two formats side by side; none: no convention has both.
Dialect common_dialect(const ExportFormat& a, const ExportFormat& b) {
  if (!a.algo.empty() && !b.algo.empty()) return Dialect::modelopt;
  if (!a.group.empty() && !b.group.empty()) return Dialect::compressed_tensors;
  return Dialect::none;
}

[[noreturn]] void refuse_pair(const Part& a, const Part& b) {
  const std::string accepted = formats_that([&](const ExportFormat& s) {
    return s.format != a.format && common_dialect(export_format_of(a.format), s) != Dialect::none;
  });
  fail(ErrorCode::unsupported,
       "no published checkpoint format holds {} in {} beside {} in {} with {} inputs; accepted beside such {}: {}",
       a.name, info(a.format.weights).name, b.name, info(b.format.weights).name,
       name_of(format::kInputFormats, b.format.inputs), a.name, accepted.empty() ? "bf16" : accepted);
}

void check_in_modelopt(const Part& part) {
  if (!export_format_of(part.format).algo.empty()) return;
  fail(ErrorCode::unsupported, "ModelOpt has no name for {} in {} with {} inputs; accepted with modelopt: {}",
       part.name, info(part.format.weights).name, name_of(format::kInputFormats, part.format.inputs),
       formats_that([](const ExportFormat& s) { return !s.algo.empty(); }));
}

Dialect dialect_of(const OnlinePolicy& f, bool modelopt) {
  const std::vector<Part> parts = quantized_parts(f);
  if (modelopt) {
    for (const Part& part : parts) check_in_modelopt(part);
    return parts.empty() ? Dialect::none : Dialect::modelopt;
  }
  if (!is_mixed(f)) return export_format_of(single(f)).dialect;
  // Where any two parts have a convention in common, all have one.
  Dialect common = Dialect::modelopt;
  for (const Part& a : parts)
    for (const Part& b : parts) {
      if (a.format == b.format) continue;
      const Dialect pair = common_dialect(export_format_of(a.format), export_format_of(b.format));
      if (pair == Dialect::none) refuse_pair(a, b);
      if (pair == Dialect::compressed_tensors) common = pair;
    }
  return common;
}

JsonValue text(std::string_view s) { return {std::string(s)}; }
JsonValue number(int64_t n) { return {n}; }
JsonValue boolean(bool b) { return {b}; }
JsonValue list(const std::vector<std::string>& names) {
  JsonValue::Array array;
  for (const std::string& name : names) array.push_back(text(name));
  return {std::move(array)};
}
JsonValue object(std::initializer_list<std::pair<const char*, JsonValue>> members) {
  JsonValue::Object out;
  for (const auto& [key, value] : members) out.push_back({key, value});
  return {std::move(out)};
}

// One side of a compressed-tensors group.
JsonValue group_side(int bits, std::string_view strategy, int group_size, bool dynamic) {
  JsonValue side = object({{"num_bits", number(bits)},
                           {"type", text("float")},
                           {"strategy", text(strategy)},
                           {"symmetric", boolean(true)},
                           {"dynamic", boolean(dynamic)}});
  if (group_size > 0) set_member(side, "group_size", number(group_size));
  return side;
}

JsonValue compressed_group(const ModuleFormat& format, const std::vector<std::string>& targets) {
  JsonValue group = object({{"targets", list(targets)}});
  if (format.weights == Format::mxfp4) {
    set_member(group, "weights", group_side(4, "group", 32, false));
    return group;
  }
  if (format.weights == Format::mxfp8) {
    // vLLM takes it for MXFP8 only with this type of the scales.
    JsonValue weights = group_side(8, "group", 32, false), inputs = group_side(8, "group", 32, true);
    for (JsonValue* side : {&weights, &inputs}) set_member(*side, "scale_dtype", text("torch.uint8"));
    set_member(group, "weights", std::move(weights));
    set_member(group, "input_activations", std::move(inputs));
    return group;
  }
  // Inputs have strategy "tensor" where the weights have, because servers refuse other pairs. Sluice reads it as one
  // scale per row nevertheless.
  const bool tensor = format.weights == Format::fp8_tensor;
  set_member(group, "weights", group_side(8, tensor ? "tensor" : "channel", 0, false));
  set_member(group, "input_activations", group_side(8, tensor ? "tensor" : "token", 0, true));
  return group;
}

// The groups of a checkpoint with several formats. A group of names comes before the class of all linears, whatever the
// order in the file.
JsonValue compressed_groups(const OnlinePolicy& formats, const std::vector<ExportedModule>& modules) {
  std::vector<std::string> heads;
  for (const ExportedModule& m : modules)
    if (kind_of(m.name) == ModuleKind::head && m.format != ModuleFormat{} && m.format != formats.rest)
      heads.push_back(m.name);
  const std::pair<ModuleFormat, std::vector<std::string>> parts[] = {
      {formats.experts, {"re:.*\\.experts\\..*"}}, {formats.rest, {"Linear"}}, {formats.head, heads}};
  JsonValue groups = object({});
  int count = 0;
  for (const auto& [format, targets] : parts) {
    if (format == ModuleFormat{} || targets.empty()) continue;
    JsonValue group = compressed_group(format, targets);
    set_member(group, "format", text(export_format_of(format).group));
    set_member(groups, fmt::format("group_{}", count++).c_str(), std::move(group));
  }
  return groups;
}

JsonValue compressed_tensors(const OnlinePolicy& formats, const std::vector<ExportedModule>& modules,
                             const std::vector<std::string>& not_quantized) {
  JsonValue groups = object({});
  std::string_view format = "mixed-precision";
  if (is_mixed(formats)) {
    groups = compressed_groups(formats, modules);
  } else {
    format = export_format_of(single(formats)).group;
    set_member(groups, "group_0", compressed_group(single(formats), {"Linear"}));
  }
  return object({{"quant_method", text("compressed-tensors")},
                 {"format", text(format)},
                 {"quantization_status", text("compressed")},
                 {"config_groups", std::move(groups)},
                 {"ignore", list(not_quantized)}});
}

// Other tools recognise the layout by this name.
JsonValue producer() { return object({{"name", text("modelopt")}, {"version", text("as written by sluice")}}); }

ExportedConfig modelopt_config(const OnlinePolicy& formats, const std::vector<ExportedModule>& modules,
                               const std::vector<std::string>& not_quantized) {
  const std::string_view algo = is_mixed(formats) ? "MIXED_PRECISION" : export_format_of(single(formats)).algo;
  JsonValue flat = object({{"quant_method", text("modelopt")}, {"quant_algo", text(algo)}});
  JsonValue nested = object({{"quant_algo", text(algo)}, {"kv_cache_quant_algo", JsonValue{}}});
  if (is_mixed(formats)) {
    JsonValue layers = object({});
    for (const ExportedModule& m : modules) {
      if (m.format == ModuleFormat{}) continue;
      JsonValue layer = object({{"quant_algo", text(export_format_of(m.format).algo)}});
      if (info(m.format.weights).group_k > 1) set_member(layer, "group_size", number(info(m.format.weights).group_k));
      set_member(layers, m.name.c_str(), std::move(layer));
    }
    set_member(flat, "quantized_layers", layers);
    set_member(nested, "quantized_layers", std::move(layers));
  } else if (const int64_t group = info(single(formats).weights).group_k; group > 1) {
    set_member(flat, "group_size", number(group));
    set_member(nested, "group_size", number(group));
  }
  set_member(flat, "ignore", list(not_quantized));
  set_member(flat, "producer", producer());
  set_member(nested, "exclude_modules", list(not_quantized));
  return {to_json_text(flat), to_json_text(object({{"producer", producer()}, {"quantization", nested}}))};
}

}  // namespace

void check_exportable(const OnlinePolicy& formats, bool modelopt) { dialect_of(formats, modelopt); }

std::vector<std::pair<std::string, Tensor>> export_tensors(const OnlinePolicy& formats, bool modelopt,
                                                           const std::string& module, const ModuleFormat& format,
                                                           const QuantTensor& w, std::optional<float> input_scale) {
  const Dialect dialect = dialect_of(formats, modelopt);
  const auto as = [](const Tensor& t, DType dtype, Shape shape) {
    return Tensor(dtype, std::move(shape), t.data(), std::make_shared<Tensor>(t));
  };
  std::vector<std::pair<std::string, Tensor>> out;
  const bool packed = format.weights == Format::mxfp4;
  out.emplace_back(module + (packed ? ".weight_packed" : ".weight"), w.codes.slice(0));
  switch (format.weights) {
    case Format::bf16:
      break;
    case Format::fp8_tensor:
      out.emplace_back(module + ".weight_scale", w.scales.reshape({}));
      break;
    case Format::fp8_channel:
      out.emplace_back(module + ".weight_scale",
                       w.scales.reshape(dialect == Dialect::modelopt ? Shape{w.rows} : Shape{w.rows, 1}));
      break;
    case Format::fp8_block:
      out.emplace_back(module + ".weight_scale_inv", w.scales.slice(0));
      break;
    case Format::mxfp8:
      out.emplace_back(module + (dialect == Dialect::mxfp8 ? ".weight_scale_inv" : ".weight_scale"),
                       as(w.scales, DType::u8, w.scales.slice(0).shape()));
      break;
    case Format::mxfp4:
      out.emplace_back(module + ".weight_scale", as(w.scales, DType::u8, w.scales.slice(0).shape()));
      break;
    case Format::nvfp4:
      out.emplace_back(module + ".weight_scale", w.scales.slice(0));
      out.emplace_back(module + ".weight_scale_2", w.global.reshape({}));
  }
  if (input_scale) {
    Tensor scale(DType::f32, {});
    *scale.as<float>() = *input_scale;
    out.emplace_back(module + ".input_scale", scale);
  }
  return out;
}

ExportedConfig export_config(const OnlinePolicy& formats, bool modelopt, const std::vector<ExportedModule>& modules) {
  std::vector<std::string> not_quantized;
  for (const ExportedModule& m : modules)
    if (m.format == ModuleFormat{}) not_quantized.push_back(m.name);
  switch (dialect_of(formats, modelopt)) {
    case Dialect::none:
      break;
    case Dialect::fp8:
      return {to_json_text(object({{"quant_method", text("fp8")},
                                   {"activation_scheme", text("dynamic")},
                                   {"weight_block_size", JsonValue{JsonValue::Array{number(128), number(128)}}},
                                   {"modules_to_not_convert", list(not_quantized)}})),
              ""};
    case Dialect::mxfp8:
      return {to_json_text(object({{"quant_method", text("mxfp8")},
                                   {"activation_scheme", text("dynamic")},
                                   {"weight_block_size", JsonValue{JsonValue::Array{number(1), number(32)}}},
                                   {"scale_fmt", text("ue8m0")},
                                   {"modules_to_not_convert", list(not_quantized)}})),
              ""};
    case Dialect::compressed_tensors:
      return {to_json_text(compressed_tensors(formats, modules, not_quantized)), ""};
    case Dialect::modelopt:
      return modelopt_config(formats, modules, not_quantized);
  }
  return {};
}

}  // namespace sluice::weights
