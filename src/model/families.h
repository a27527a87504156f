// SPDX-License-Identifier: Apache-2.0
// The functions in the list of models.cc: each turns a configuration and its tensors into the parts of a decoder.
#pragma once

#include "model/decoder.h"
#include "model/weight_reader.h"

namespace sluice::model {

Decoder::Parts load_qwen3_moe(const WeightReader& reader);    // Qwen3-MoE
Decoder::Parts load_nemotron_h(const WeightReader& reader);   // NemotronH: Mamba-2, attention, MLP, (latent) MoE
Decoder::Parts load_deepseek_v3(const WeightReader& reader);  // DeepSeek-V3: latent attention, grouped MoE, MTP layer

// What each keeps in the cache, from the configuration alone; the dtype is the caller's to set.
CacheShape cache_of_qwen3_moe(const WeightReader& reader);
CacheShape cache_of_nemotron_h(const WeightReader& reader);
CacheShape cache_of_deepseek_v3(const WeightReader& reader);

}  // namespace sluice::model
