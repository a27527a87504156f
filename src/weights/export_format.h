// SPDX-License-Identifier: Apache-2.0
// The published checkpoint formats that quantised modules are written in: tensor names, and the quantization config.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "weights/online.h"
#include "weights/quant_tensor.h"

namespace sluice::weights {

// Throws unsupported for formats that no published convention describes, naming those that have one:
//   bf16 + plain              nothing at all
//   fp8_tensor + fp8_token    compressed-tensors
//   fp8_tensor + fp8_static   ModelOpt FP8
//   fp8_channel + fp8_token   compressed-tensors
//   fp8_block + fp8_group     quant_method fp8, [128, 128]
//   mxfp8 + mxfp8             quant_method mxfp8, which transformers reads; or ModelOpt MXFP8, which vLLM reads
//   nvfp4 + nvfp4             ModelOpt NVFP4
//   nvfp4 + plain             ModelOpt W4A16_NVFP4
//   mxfp4 + plain             compressed-tensors
// Several formats side by side, of the experts, of the rest and of the head: ModelOpt's MIXED_PRECISION for those that
// it has a name for (FP8, FP8_PER_CHANNEL_PER_TOKEN, MXFP8, NVFP4, W4A16_NVFP4), or groups of compressed-tensors
// (fp8_tensor, fp8_channel, mxfp8, mxfp4). modelopt: ModelOpt's convention where there is another one, and a refusal
// where it has no name for a format.
void check_exportable(const OnlinePolicy& formats, bool modelopt);

// The tensors of one module with their names, in the convention of `formats`; w is [1, N, K] in `format`. input_scale:
// decode factor, only for static inputs.
std::vector<std::pair<std::string, Tensor>> export_tensors(const OnlinePolicy& formats, bool modelopt,
                                                           const std::string& module, const ModuleFormat& format,
                                                           const QuantTensor& w, std::optional<float> input_scale);

struct ExportedModule {
  std::string name;
  ModuleFormat format;
};
struct ExportedConfig {
  std::string quantization_config;  // JSON of config.json's member; empty for bf16
  std::string hf_quant_config;      // the whole file hf_quant_config.json; empty where no tool wants one
};
// modules: every linear that is written, with those that stay in BF16.
ExportedConfig export_config(const OnlinePolicy& formats, bool modelopt, const std::vector<ExportedModule>& modules);

}  // namespace sluice::weights
