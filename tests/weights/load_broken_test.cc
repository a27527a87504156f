// SPDX-License-Identifier: Apache-2.0
// Broken checkpoints: one sentence with the file, the tensor, the value and what is expected.
#include "load_case.h"

#include <functional>

namespace sluice::weights {
namespace {

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
      {Format::nvfp4, "no input scale", erase(kModule + ".input_scale"), "nvfp4_per_token_activation"},
      {Format::nvfp4, "zero input scale", set_float(kModule + ".input_scale", 0),
       "holds 0; input scales are positive finite numbers"},
      {Format::nvfp4, "NaN input scale", set_float(kModule + ".input_scale", NAN), "input_scale\" holds nan"},
      {Format::nvfp4, "empty input scale", replace(kModule + ".input_scale", DType::f32, {0}),
       "input_scale\" has shape [0]; one input scale is expected"},
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
  expect_parts(text_of(Format::nvfp4,
                       [](Written& w) {
                         w.tensors[kExperts + ".3.down_proj.input_scale"] = Tensor(DType::bf16, {2, 0});
                       },
                       {4, 64, 32}),
               kExperts + ".3.down_proj.input_scale\" has shape [2, 0]; one input scale is expected", "empty scale");
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
