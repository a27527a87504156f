// SPDX-License-Identifier: Apache-2.0
// How a quantised module is written so that other tools read it: tensor names, and the configuration that says so.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "weights/quant_scheme.h"
#include "weights/quant_tensor.h"

namespace sluice::weights {

// Throws unsupported for a pair of formats that no published convention describes, naming those that have one:
//   bf16 + plain              nothing at all
//   fp8_tensor + fp8_token    compressed-tensors
//   fp8_tensor + fp8_static   ModelOpt FP8
//   fp8_channel + fp8_token   compressed-tensors
//   fp8_block + fp8_group     quant_method fp8, [128, 128]
//   mxfp8 + mxfp8             quant_method mxfp8
//   nvfp4 + nvfp4             ModelOpt NVFP4
//   nvfp4 + plain             ModelOpt W4A16_NVFP4
//   mxfp4 + plain             compressed-tensors
void check_spelling(const ModuleFormat& format);

// One module's tensors, named; w is [1, N, K]. input_scale: decode factor, only for static inputs.
std::vector<std::pair<std::string, Tensor>> spell(const std::string& module, const ModuleFormat& format,
                                                  const QuantTensor& w, std::optional<float> input_scale);

struct SpelledConfig {
  std::string quantization_config;  // JSON of config.json's member; empty for bf16
  std::string hf_quant_config;      // the whole file hf_quant_config.json; empty where no tool wants one
};
// not_quantized: the names of the linears that stay in BF16.
SpelledConfig spell_config(const ModuleFormat& format, const std::vector<std::string>& not_quantized);

}  // namespace sluice::weights
