// SPDX-License-Identifier: Apache-2.0
// THE LIST of model families, and the one way from a folder to a model.
#pragma once

#include <memory>

#include "model/load_options.h"
#include "model/model.h"

namespace sluice::model {

// Reads the configuration and all weights. Throws unsupported for an architecture that is not in the list (naming it
// and the list), bad_file when config.json is wrong in itself or contradicts the tensors, and what io and weights
// throw.
std::unique_ptr<Model> load_model(Context& ctx, const LoadOptions& options);

// "Qwen3MoeForCausalLM, NemotronHForCausalLM, ..."
std::string model_names();

}  // namespace sluice::model
