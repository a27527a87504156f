// SPDX-License-Identifier: Apache-2.0
// BF16 checkpoints quantised while they are loaded.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "weights/quant_scheme.h"

namespace sluice::weights {

enum class ModuleKind : uint8_t {
  experts,  // routed experts
  linear,   // attention q k v o and MLA's projections; dense MLPs, shared experts, latent fc1/fc2; Mamba in and out
  head,     // lm_head, and MTP's copy of it, shared_head.head
  other,    // router gate, embeddings, norms, conv1d, biases, MTP's eh_proj: always BF16 or float32
};
// `module`: a checkpoint name of a linear or of an experts module.
ModuleKind kind_of(std::string_view module);

// What a BF16 checkpoint becomes.
struct OnlinePolicy {
  std::string name;  // as it was asked for, for sentences
  ModuleFormat experts, rest, head;

  // BF16: the module stays as it is.
  ModuleFormat of(std::string_view module) const;
};

// Formats by name:
//   bf16                               weights and inputs as they are
//   fp8 (modelopt_fp8's weights)       fp8_tensor, inputs fp8_token: one scale per row, nothing to calibrate
//   fp8_channel, w8a8_fp8              fp8_channel, inputs fp8_token
//   fp8_block                          fp8_block, inputs fp8_group
//   mxfp8                              mxfp8, inputs mxfp8
//   nvfp4                              nvfp4, inputs nvfp4: needs calibrated input scales
//   nvfp4_online                       nvfp4, inputs nvfp4_token
//   mxfp4                              mxfp4, inputs plain
// name: of the routed experts. rest: of the other linears; empty follows SGLang, where fp8 and mxfp8 take every linear,
// NVFP4 and MXFP4 the experts alone. head: of the output head; empty: BF16. Throws invalid_argument with the accepted
// names for another one; it calls them quantization, quantization_rest and quantization_head.
OnlinePolicy parse_online_policy(std::string_view name, std::string_view rest = {}, std::string_view head = {});
// The names, in that order.
std::vector<std::string_view> online_formats();

}  // namespace sluice::weights
