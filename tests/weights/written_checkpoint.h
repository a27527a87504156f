// SPDX-License-Identifier: Apache-2.0
// Checkpoints that tests put together tensor by tensor, in every published format.
#pragma once

#include <cstdio>
#include <fstream>
#include <map>

#include "io/checkpoint.h"
#include "io/safetensors_writer.h"
#include "random_weights.h"
#include "tests/io/temp_dir.h"

namespace sluice::weights {

struct Written {
  io::TempDir dir;
  std::map<std::string, Tensor> tensors;
  std::string config = "{}", hf_quant_config;

  io::Checkpoint open() {
    io::SafetensorsWriter(dir.path() / "model.safetensors").write_all({tensors.begin(), tensors.end()});
    std::ofstream(dir.path() / "config.json") << config;
    if (!hf_quant_config.empty()) std::ofstream(dir.path() / "hf_quant_config.json") << hf_quant_config;
    return io::Checkpoint::open(dir.path());
  }
};

inline Tensor as_type(const Tensor& t, DType dtype, Shape shape) {
  return {dtype, std::move(shape), t.data(), std::make_shared<Tensor>(t)};
}

inline Tensor scalar(float value, Shape shape = {}) {
  Tensor t(DType::f32, std::move(shape));
  *t.as<float>() = value;
  return t;
}

inline Tensor to_bf16(const Tensor& floats) {
  Tensor t(DType::bf16, floats.shape());
  for (int64_t i = 0; i < t.elements(); ++i) t.as<uint16_t>()[i] = float_to_bf16(floats.as<float>()[i]);
  return t;
}

// Matrix e of w under "<module>.weight" and its scales, named as by the format's usual writer.
inline void put_matrix(Written& to, const std::string& module, const QuantTensor& w, int64_t e = 0) {
  using format::Format;
  to.tensors[module + ".weight"] = w.codes.slice(e);
  switch (w.format) {
    case Format::bf16:
      break;
    case Format::fp8_tensor:
      to.tensors[module + ".weight_scale"] = scalar(w.scales.as<float>()[e]);
      break;
    case Format::fp8_channel:
      to.tensors[module + ".weight_scale"] = as_type(w.scales.slice(e), DType::f32, {w.rows, 1});
      break;
    case Format::fp8_block:
      to.tensors[module + ".weight_scale_inv"] = w.scales.slice(e);
      break;
    case Format::mxfp8:
      to.tensors[module + ".weight_scale_inv"] = as_type(w.scales.slice(e), DType::u8, w.scales.slice(e).shape());
      break;
    case Format::mxfp4:
      to.tensors[module + ".weight_scale"] = w.scales.slice(e);
      break;
    case Format::nvfp4:
      to.tensors[module + ".weight_scale"] = w.scales.slice(e);
      to.tensors[module + ".weight_scale_2"] = scalar(w.global.as<float>()[e]);
      break;
  }
}

// config.json whose quantization_config says `format` with these inputs.
inline std::string config_for(format::Format format, bool fixed_inputs = false) {
  using format::Format;
  switch (format) {
    case Format::bf16:
      return "{}";
    case Format::fp8_tensor:
      return fixed_inputs ? R"({"quantization_config": {"quant_method": "modelopt", "quant_algo": "FP8"}})"
                          : R"({"quantization_config": {"quant_method": "fp8", "activation_scheme": "dynamic"}})";
    case Format::fp8_channel:
      return R"({"quantization_config": {"quant_method": "compressed-tensors", "config_groups": {"group_0": {
          "targets": ["Linear"], "weights": {"num_bits": 8, "type": "float", "strategy": "channel"},
          "input_activations": {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": true}}}}})";
    case Format::fp8_block:
      return R"({"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}})";
    case Format::mxfp8:
      return R"({"quantization_config": {"quant_method": "mxfp8", "weight_block_size": [1, 32]}})";
    case Format::mxfp4:
      return R"({"quantization_config": {"quant_method": "mxfp4"}})";
    case Format::nvfp4:
      return R"({"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16}})";
  }
  return "";
}

}  // namespace sluice::weights
