// SPDX-License-Identifier: Apache-2.0
// The functions behind the list in models.cc: a configuration and its tensors -> the parts of a decoder.
#pragma once

#include "model/decoder.h"
#include "model/source.h"

namespace sluice::model {

Decoder::Parts load_qwen3_moe(const Source& source);    // Qwen3-MoE
Decoder::Parts load_nemotron_h(const Source& source);   // NemotronH: Mamba-2, attention, MLP, (latent) MoE
Decoder::Parts load_deepseek_v3(const Source& source);  // DeepSeek-V3: latent attention, grouped MoE, MTP layer

}  // namespace sluice::model
