// SPDX-License-Identifier: Apache-2.0
// --quantization: BF16 checkpoints quantised while they are loaded.
#pragma once

#include <string_view>

#include "weights/quant_scheme.h"

namespace sluice::weights {

// Which modules a format is used for. Follows SGLang: fp8 and mxfp8 take every linear, NVFP4 and MXFP4 the experts.
//
//                                              fp8, fp8_channel, fp8_block, mxfp8 | nvfp4, nvfp4_online, mxfp4
//   routed experts                                          yes                   |           yes
//   attention q k v o, MLA's projections                    yes                   |            -
//   dense MLPs, shared experts, latent fc1/fc2              yes                   |            -
//   Mamba in_proj, out_proj                                 yes                   |            -
//   router gate, lm_head, embeddings, norms,                 -                    |            -
//   conv1d, biases, MTP's eh_proj
enum class Coverage : uint8_t { linears, experts };

struct OnlineFormat {
  std::string_view name;
  ModuleFormat format;
  Coverage coverage = Coverage::linears;
};

// bf16                               weights and inputs as they are
// fp8 (modelopt_fp8's weights)       fp8_tensor, inputs fp8_token: one scale a row, nothing to calibrate
// fp8_channel, w8a8_fp8              fp8_channel, inputs fp8_token
// fp8_block                          fp8_block, inputs fp8_group
// mxfp8                              mxfp8, inputs mxfp8
// nvfp4                              nvfp4, inputs nvfp4: needs calibrated input scales
// nvfp4_online                       nvfp4, inputs nvfp4_token
// mxfp4                              mxfp4, inputs plain
// Throws invalid_argument with these names for another one.
OnlineFormat parse_online_format(std::string_view name);

// Whether `module` (a checkpoint name of a linear or of an experts module) is quantised.
bool online_quantizes(Coverage coverage, std::string_view module);

}  // namespace sluice::weights
