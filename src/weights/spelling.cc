// SPDX-License-Identifier: Apache-2.0
#include "weights/spelling.h"

#include "weights/json_text.h"

namespace sluice::weights {

using format::Format;
using format::InputFormat;
using io::JsonValue;

namespace {

enum class Dialect : uint8_t { none, fp8, mxfp8, modelopt, compressed_tensors };

struct Spelling {
  ModuleFormat format;
  Dialect dialect;
  std::string_view algo;  // ModelOpt's quant_algo
};

constexpr Spelling kSpellings[] = {
    {{Format::bf16, InputFormat::plain}, Dialect::none, ""},
    // Not quant_method "fp8": transformers takes that for 128x128 blocks unless told otherwise, and asks for another
    // name of the scale than the servers do.
    {{Format::fp8_tensor, InputFormat::fp8_token}, Dialect::compressed_tensors, ""},
    {{Format::fp8_tensor, InputFormat::fp8_static}, Dialect::modelopt, "FP8"},
    {{Format::fp8_channel, InputFormat::fp8_token}, Dialect::compressed_tensors, ""},
    {{Format::fp8_block, InputFormat::fp8_group}, Dialect::fp8, ""},
    {{Format::mxfp8, InputFormat::mxfp8}, Dialect::mxfp8, ""},
    {{Format::nvfp4, InputFormat::nvfp4}, Dialect::modelopt, "NVFP4"},
    {{Format::nvfp4, InputFormat::plain}, Dialect::modelopt, "W4A16_NVFP4"},
    {{Format::mxfp4, InputFormat::plain}, Dialect::compressed_tensors, ""},
};

const Spelling& spelling_of(const ModuleFormat& format) {
  std::string accepted;
  for (const Spelling& s : kSpellings) {
    if (s.format == format) return s;
    accepted += fmt::format("{}{} with {} inputs", accepted.empty() ? "" : ", ", info(s.format.weights).name,
                            name_of(format::kInputFormats, s.format.inputs));
  }
  fail(ErrorCode::unsupported, "no published checkpoint format holds {} weights with {} inputs; accepted: {}",
       info(format.weights).name, name_of(format::kInputFormats, format.inputs), accepted);
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

JsonValue compressed_tensors(const ModuleFormat& format, const std::vector<std::string>& not_quantized) {
  const bool fp8 = format.weights != Format::mxfp4;
  // "tensor" beside weights of one scale: servers refuse other pairs, and read here it means a scale a row all the
  // same.
  const std::string_view strategy = format.weights == Format::fp8_tensor ? "tensor" : "channel";
  JsonValue group = object({{"targets", list({"Linear"})},
                            {"weights", fp8 ? group_side(8, strategy, 0, false) : group_side(4, "group", 32, false)}});
  if (fp8) set_member(group, "input_activations", group_side(8, strategy == "tensor" ? "tensor" : "token", 0, true));
  return object({{"quant_method", text("compressed-tensors")},
                 {"format", text(fp8 ? "float-quantized" : "mxfp4-pack-quantized")},
                 {"quantization_status", text("compressed")},
                 {"config_groups", object({{"group_0", group}})},
                 {"ignore", list(not_quantized)}});
}

// Other tools recognise the layout by this name.
JsonValue producer() { return object({{"name", text("modelopt")}, {"version", text("as written by sluice")}}); }

}  // namespace

void check_spelling(const ModuleFormat& format) { spelling_of(format); }

std::vector<std::pair<std::string, Tensor>> spell(const std::string& module, const ModuleFormat& format,
                                                  const QuantTensor& w, std::optional<float> input_scale) {
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
      out.emplace_back(module + ".weight_scale", w.scales.reshape({w.rows, 1}));
      break;
    case Format::fp8_block:
      out.emplace_back(module + ".weight_scale_inv", w.scales.slice(0));
      break;
    case Format::mxfp8:
      out.emplace_back(module + ".weight_scale_inv", as(w.scales, DType::u8, w.scales.slice(0).shape()));
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

SpelledConfig spell_config(const ModuleFormat& format, const std::vector<std::string>& not_quantized) {
  const Spelling& spelling = spelling_of(format);
  switch (spelling.dialect) {
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
      return {to_json_text(compressed_tensors(format, not_quantized)), ""};
    case Dialect::modelopt: {
      JsonValue flat = object({{"quant_method", text("modelopt")}, {"quant_algo", text(spelling.algo)}});
      JsonValue nested = object({{"quant_algo", text(spelling.algo)}, {"kv_cache_quant_algo", JsonValue{}}});
      if (format.weights == Format::nvfp4) {
        set_member(flat, "group_size", number(16));
        set_member(nested, "group_size", number(16));
      }
      set_member(flat, "ignore", list(not_quantized));
      set_member(flat, "producer", producer());
      set_member(nested, "exclude_modules", list(not_quantized));
      return {to_json_text(flat), to_json_text(object({{"producer", producer()}, {"quantization", nested}}))};
    }
  }
  return {};
}

}  // namespace sluice::weights
