// SPDX-License-Identifier: Apache-2.0
#include "weights/stored.h"

#include <algorithm>
#include <bit>
#include <cfloat>
#include <cmath>
#include <cstring>

#include "base/f16.h"
#include "weights/scale_grid.h"

namespace sluice::weights {

using format::Format;
using format::ScaleType;
using io::Checkpoint;

namespace {

bool is_float(DType d) { return d == DType::bf16 || d == DType::f32 || d == DType::f16; }

std::string first_present(const Checkpoint& checkpoint, std::initializer_list<std::string> names) {
  for (const std::string& name : names)
    if (checkpoint.contains(name)) return name;
  return {};
}

// Values of a float tensor (or of UE8M0 scales), as float32.
std::vector<float> to_floats(const Checkpoint& checkpoint, std::string_view name) {
  const Tensor t = checkpoint.tensor(name);
  std::vector<float> out(static_cast<size_t>(t.elements()));
  switch (t.dtype()) {
    case DType::f32:
      if (!out.empty()) std::memcpy(out.data(), t.data(), out.size() * sizeof(float));  // no elements: null
      break;
    case DType::bf16:
      std::transform(t.as<uint16_t>(), t.as<uint16_t>() + out.size(), out.begin(), bf16_to_float);
      break;
    case DType::f16:
      std::transform(t.as<uint16_t>(), t.as<uint16_t>() + out.size(), out.begin(), f16_to_float);
      break;
    case DType::e8m0:
      std::transform(t.as<uint8_t>(), t.as<uint8_t>() + out.size(), out.begin(), format::e8m0_to_float);
      break;
    default:
      fail(ErrorCode::bad_file, "{} is {}; float32, bfloat16 or float16 is expected", checkpoint.source_of(name),
           to_string(t.dtype()));
  }
  return out;
}

void check_shape(const Checkpoint& checkpoint, std::string_view name, const Shape& shape,
                 std::initializer_list<Shape> accepted, std::string_view format) {
  if (std::find(accepted.begin(), accepted.end(), shape) != accepted.end()) return;
  fail(ErrorCode::bad_file, "{} has shape {}; {} is expected for {}", checkpoint.source_of(name), to_string(shape),
       to_string(*accepted.begin()), format);
}

// Rows of the file's tensor without the dimensions that some writers add.
Shape with_experts(const StoredShape& s, Shape shape) {
  if (s.stacked) shape.insert(shape.begin(), s.experts);
  return shape;
}

Tensor codes_of(const Checkpoint& checkpoint, const StoredNames& names, Format format, const StoredShape& s) {
  const format::FormatInfo f = info(format);
  const Tensor t = checkpoint.tensor(names.weight);
  if (f.bits == 16) {
    if (!is_float(t.dtype()))
      fail(ErrorCode::bad_file, "{} is {}; bfloat16, float32 or float16 is expected",
           checkpoint.source_of(names.weight), to_string(t.dtype()));
  } else {
    const bool packed = f.bits == 4 && (t.dtype() == DType::u8 || t.dtype() == DType::i8);
    if (!packed && t.dtype() != code_type(f))
      fail(ErrorCode::bad_file, "{} is {}; {} is expected for {}", checkpoint.source_of(names.weight),
           to_string(t.dtype()), to_string(code_type(f)), f.name);
  }
  const int64_t cols = f.bits == 4 ? s.cols / 2 : s.cols;
  const Shape shape = with_experts(s, {s.rows, cols});
  if (names.blocks) {
    if (s.cols % 32 != 0)
      fail(ErrorCode::bad_file, "{} holds blocks of 32, but the matrix has {} columns",
           checkpoint.source_of(names.weight), s.cols);
    check_shape(checkpoint, names.weight, t.shape(), {with_experts(s, {s.rows, s.cols / 32, 16})}, f.name);
  } else {
    check_shape(checkpoint, names.weight, t.shape(), {shape}, f.name);
  }
  const Shape canonical{s.experts, s.rows, cols};
  if (t.dtype() == DType::f32 || t.dtype() == DType::f16) {
    const std::vector<float> values = to_floats(checkpoint, names.weight);
    Tensor rounded(DType::bf16, canonical);
    std::transform(values.begin(), values.end(), rounded.as<uint16_t>(), float_to_bf16);
    return rounded;
  }
  return {code_type(f), canonical, t.data(), std::make_shared<Tensor>(t)};
}

// One-byte scales: UE8M0 (also stored as uint8) or e4m3.
Tensor byte_scales(const Checkpoint& checkpoint, const StoredNames& names, Format format, const StoredShape& s) {
  const format::FormatInfo f = info(format);
  const ScaleGrid grid = scale_grid(format, s.rows, s.cols);
  const Tensor t = checkpoint.tensor(names.scale);
  const bool e8m0 = f.scale == ScaleType::e8m0;
  if (t.dtype() != scale_type(f) && !(e8m0 && t.dtype() == DType::u8))
    fail(ErrorCode::bad_file, "{} is {}; {} is expected for {}", checkpoint.source_of(names.scale),
         to_string(t.dtype()), e8m0 ? "uint8 (biased exponents)" : to_string(scale_type(f)), f.name);
  check_shape(checkpoint, names.scale, t.shape(), {with_experts(s, {grid.rows, grid.cols})}, f.name);
  const auto* bytes = static_cast<const uint8_t*>(t.data());
  const auto bad =
      std::find_if(bytes, bytes + t.elements(), [&](uint8_t b) { return e8m0 ? b == 255 : b > 0x80 || b == 0x7f; });
  if (bad != bytes + t.elements())
    fail(ErrorCode::bad_file,
         "{} holds the byte {} at [{}], which reads as {}; scales are numbers that are not negative",
         checkpoint.source_of(names.scale), *bad, bad - bytes, e8m0 ? NAN : format::e4m3_to_float(*bad));
  return {scale_type(f), {s.experts, grid.rows, grid.cols}, t.data(), std::make_shared<Tensor>(t)};
}

// Throws unless every value is finite and not negative.
void check_scales(const Checkpoint& checkpoint, std::string_view name, const std::vector<float>& values) {
  for (size_t i = 0; i < values.size(); ++i)
    if (!std::isfinite(values[i]) || values[i] < 0)
      fail(ErrorCode::bad_file, "{} holds {} at [{}]; scales are finite numbers that are not negative",
           checkpoint.source_of(name), values[i], i);
}

Tensor float_scales(const Checkpoint& checkpoint, const StoredNames& names, Format format, const StoredShape& s,
                    int half) {
  const ScaleGrid grid = scale_grid(format, s.rows, s.cols);
  std::vector<float> values = to_floats(checkpoint, names.scale);
  const Shape& shape = checkpoint.find(names.scale)->shape;
  Shape canonical{s.experts};
  if (grid.rank == 0) {
    const auto count = static_cast<int64_t>(values.size());
    if (half >= 0 && count == 2 * s.experts) {
      for (int64_t e = 0; e < s.experts; ++e) values[e] = values[2 * e + half];
      values.resize(static_cast<size_t>(s.experts));
    } else if (count != s.experts) {
      fail(ErrorCode::bad_file, "{} has shape {}; {} is expected for {}", checkpoint.source_of(names.scale),
           to_string(shape), s.experts == 1 ? "one value" : fmt::format("one value for each of {} experts", s.experts),
           info(format).name);
    }
  } else if (grid.rank == 1) {
    canonical.push_back(grid.rows);
    check_shape(checkpoint, names.scale, shape, {with_experts(s, {grid.rows}), with_experts(s, {grid.rows, 1})},
                info(format).name);
  } else {
    canonical.insert(canonical.end(), {grid.rows, grid.cols});
    check_shape(checkpoint, names.scale, shape,
                {with_experts(s, {grid.rows, grid.cols}), with_experts(s, {grid.rows, 1, grid.cols, 1})},
                info(format).name);
  }
  check_scales(checkpoint, names.scale, values);
  Tensor out(DType::f32, canonical);
  std::copy(values.begin(), values.end(), out.as<float>());
  return out;
}

Tensor global_scales(const Checkpoint& checkpoint, const StoredNames& names, const StoredShape& s, int half) {
  std::vector<float> values = to_floats(checkpoint, names.global);
  check_scales(checkpoint, names.global, values);
  const auto count = static_cast<int64_t>(values.size());
  const bool halves = half >= 0 && count == 2 * s.experts;
  if (count != s.experts && !halves)
    fail(ErrorCode::bad_file, "{} has shape {}; {} is expected", checkpoint.source_of(names.global),
         to_string(checkpoint.find(names.global)->shape),
         s.experts == 1 ? "one value" : fmt::format("one value for each of {} experts", s.experts));
  Tensor out(DType::f32, {s.experts});
  for (int64_t e = 0; e < s.experts; ++e) {
    const float value = values[halves ? 2 * e + half : e];
    if (names.reciprocal && !(value > 0))
      fail(ErrorCode::bad_file, "{} holds {} at [{}]; it is divided by, so it must be positive",
           checkpoint.source_of(names.global), value, e);
    out.as<float>()[e] = names.reciprocal ? 1.0f / value : value;
  }
  return out;
}

}  // namespace

StoredNames linear_names(const Checkpoint& checkpoint, std::string_view module) {
  const std::string m(module);
  StoredNames names;
  names.weight = first_present(checkpoint, {m + ".weight", m + ".weight_packed"});
  names.scale = first_present(checkpoint, {m + ".weight_scale_inv", m + ".weight_scale"});
  names.global = first_present(checkpoint, {m + ".weight_scale_2", m + ".weight_global_scale"});
  names.input = first_present(checkpoint, {m + ".input_scale", m + ".input_global_scale", m + ".activation_scale"});
  names.reciprocal = names.global.ends_with("weight_global_scale");
  if (names.weight.empty()) fail(ErrorCode::not_found, "{} has no tensor \"{}.weight\"", checkpoint.source_of(""), m);
  return names;
}

StoredNames fused_names(const Checkpoint& checkpoint, std::string_view module, std::string_view projection) {
  const std::string m = std::string(module) + "." + std::string(projection);
  StoredNames names;
  names.weight = first_present(checkpoint, {m, m + "_blocks", m + ".weight"});
  names.blocks = names.weight.ends_with("_blocks");
  names.scale = first_present(checkpoint, {m + "_scale_inv", m + "_weight_scale", m + "_scales", m + "_scale",
                                           m + ".weight_scale_inv", m + ".weight_scale"});
  names.global = first_present(checkpoint, {m + "_weight_scale_2", m + ".weight_scale_2"});
  names.input = first_present(checkpoint, {m + "_input_scale", m + ".input_scale"});
  return names;
}

ModuleFormat stored_format(const Checkpoint& checkpoint, const QuantScheme& scheme, std::string_view module,
                           const StoredNames& names) {
  const ModuleFormat format = scheme.of(module);
  const DType type = checkpoint.tensor(names.weight).dtype();
  if (is_float(type)) return {};
  if (format.weights == Format::bf16)
    fail(ErrorCode::bad_file, "{} is {}, but {}", checkpoint.source_of(names.weight), to_string(type),
         scheme.quantized() ? scheme.source() + " excludes it from quantisation"
                            : "config.json has no quantization_config that says how to read it");
  return format;
}

std::vector<std::string> needed_scales(const Checkpoint& checkpoint, const QuantScheme& scheme, std::string_view module,
                                       const StoredNames& names, bool per_token) {
  const ModuleFormat format = scheme.of(module);
  const io::SafetensorsEntry* weight = checkpoint.find(names.weight);
  if (weight == nullptr || !weight->dtype->dtype || is_float(*weight->dtype->dtype)) return {};
  const format::FormatInfo f = info(format.weights);
  const bool packed = names.weight.ends_with(".weight_packed");  // compressed-tensors
  std::string matrix = names.weight;
  if (packed || matrix.ends_with(".weight")) matrix.resize(matrix.rfind('.'));
  std::vector<std::string> needed;
  const auto add = [&](const std::string& present, const char* published) {
    needed.push_back(present.empty() ? matrix + "." + published : present);
  };
  if (f.scale != ScaleType::none)
    add(names.scale, format.weights == Format::fp8_block ? "weight_scale_inv" : "weight_scale");
  if (f.global_scale) add(names.global, packed ? "weight_global_scale" : "weight_scale_2");
  if (format::is_static(format.inputs) && !(per_token && format.inputs == format::InputFormat::nvfp4))
    add(names.input, packed ? "input_global_scale" : "input_scale");
  return needed;
}

QuantTensor open_stored(const Checkpoint& checkpoint, const StoredNames& names, Format format, const StoredShape& s,
                        int half) {
  const format::FormatInfo f = info(format);
  check_file(f.bits != 4 || s.cols % 2 == 0, "{} cannot have {} columns: {} packs two codes in a byte",
             checkpoint.source_of(names.weight), s.cols, f.name);
  QuantTensor w{format, s.experts, s.rows, s.cols, codes_of(checkpoint, names, format, s), {}, {}};
  if (f.scale == ScaleType::none) return w;
  if (names.scale.empty())
    fail(ErrorCode::bad_file, "{} is stored as {}, but its scales ({}) are missing", checkpoint.source_of(names.weight),
         f.name, "weight_scale or weight_scale_inv beside it");
  w.scales = f.scale == ScaleType::f32 ? float_scales(checkpoint, names, format, s, half)
                                       : byte_scales(checkpoint, names, format, s);
  if (!f.global_scale) return w;
  if (names.global.empty())
    fail(ErrorCode::bad_file, "{} is stored as {}, but its global scale ({}) is missing",
         checkpoint.source_of(names.weight), f.name, "weight_scale_2 beside it");
  w.global = global_scales(checkpoint, names, s, half);
  return w;
}

float read_static_input_scale(const Checkpoint& checkpoint, const std::vector<StoredNames>& weights,
                              format::InputFormat inputs) {
  float largest = 0;
  for (const StoredNames& names : weights) {
    if (names.input.empty())
      fail(ErrorCode::bad_file, "{} has {} inputs, but its input_scale is missing{}",
           checkpoint.source_of(names.weight), name_of(format::kInputFormats, inputs),
           inputs == format::InputFormat::nvfp4 ? "; nvfp4_per_token_activation takes the scale from each token instead"
                                                : "");
    const bool reciprocal = names.input.ends_with("input_global_scale");
    const std::vector<float> values = to_floats(checkpoint, names.input);
    if (values.empty())
      fail(ErrorCode::bad_file, "{} has shape {}; one input scale is expected, or several of which the largest counts",
           checkpoint.source_of(names.input), to_string(checkpoint.find(names.input)->shape));
    for (const float value : values) {
      const float scale = reciprocal ? 1.0f / value : value;
      if (!std::isfinite(scale) || !(scale >= FLT_MIN))
        fail(ErrorCode::bad_file, "{} holds {}; input scales are positive finite numbers",
             checkpoint.source_of(names.input), value);
      largest = std::max(largest, scale);
    }
  }
  return largest;
}

Tensor read_floats(const Checkpoint& checkpoint, std::string_view name, const Shape& shape) {
  const std::vector<float> values = to_floats(checkpoint, name);
  const Shape& stored = checkpoint.find(name)->shape;
  check_file(stored == shape, "{} has shape {}; {} is expected", checkpoint.source_of(name), to_string(stored),
             to_string(shape));
  Tensor out(DType::f32, shape);
  std::copy(values.begin(), values.end(), out.as<float>());
  return out;
}

void check_codes(const Checkpoint& checkpoint, std::string_view name, const QuantTensor& w, int64_t expert) {
  if (info(w.format).bits != 8) return;
  const int64_t count = w.rows * w.cols;
  w.begin_rows(expert, 0, w.rows);
  const auto* codes = reinterpret_cast<const uint8_t*>(w.code_row(expert, 0));
  bool nan = false;  // a plain loop over all of them is vectorised; an early exit is not
  for (int64_t i = 0; i < count; ++i) nan |= (codes[i] & 0x7f) == 0x7f;
  check_file(!nan, "{} holds a NaN code (0x7f or 0xff)", checkpoint.source_of(name));
}

void check_finite(const Checkpoint& checkpoint, std::string_view name, const QuantTensor& w, int64_t expert) {
  if (w.format != Format::bf16) return;
  w.begin_rows(expert, 0, w.rows);
  bool finite = true;
  for (int64_t row = 0; row < w.rows && finite; ++row) {
    const auto* values = reinterpret_cast<const uint16_t*>(w.code_row(expert, row));
    for (int64_t i = 0; i < w.cols; ++i) finite &= (values[i] & 0x7f80) != 0x7f80;
  }
  check_file(finite, "{} holds a value that is infinite or NaN, which cannot be quantised; accepted: finite values",
             checkpoint.source_of(name));
}

}  // namespace sluice::weights
