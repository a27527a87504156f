// SPDX-License-Identifier: Apache-2.0
// Records the largest inputs of every linear and of every layer's experts on a text. Formats with static activation
// scales (fp8_static, nvfp4) need them when a BF16 checkpoint is quantised.
#pragma once

#include <map>
#include <span>
#include <string>

#include "model/model.h"

namespace sluice::model {

// By module name, for LoadOptions::amax and for `sluice quantize`. Windows as for perplexity(); 0: of 512 tokens, or as
// many as the model allows. head: also of the output head, which costs the logits of all rows.
std::map<std::string, float> calibrate(Context& ctx, const Model& model, std::span<const int32_t> ids, bool head,
                                       int64_t window = 0);

}  // namespace sluice::model
