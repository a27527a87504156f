// SPDX-License-Identifier: Apache-2.0
// The activation ranges that a calibration run records, and the static activation scales made from them.
#pragma once

#include <map>
#include <mutex>
#include <string>
#include <string_view>

#include "format/formats.h"

namespace sluice::weights {

// The largest |x| at the input of each linear. A model that runs with an observer calls observe() before every linear,
// with the module's checkpoint name ("model.layers.0.self_attn.q_proj"), and for a layer's experts with the names of
// expert_inputs() below. Thread-safe. NaN and infinities are refused when scales are made from them, not here.
class ActivationObserver {
 public:
  void observe(std::string_view module, const float* x, int64_t count);
  void observe_amax(std::string_view module, float amax);
  std::map<std::string, float> amax() const;

 private:
  mutable std::mutex mutex_;
  std::map<std::string, float> amax_;
};

// The names under which the inputs of an experts module ("model.layers.3.mlp.experts") are observed: the rows of every
// expert together, because one scale serves all of them.
struct ExpertInputs {
  std::string gemm1, gemm2;
};
ExpertInputs expert_inputs(std::string_view experts_module);

// Decode factor (x = code * scale) for amax: fp8_static amax / 448, nvfp4 amax / (448 * 6); at least FLT_MIN.
// Throws invalid_argument for another format, and when amax is NaN or infinite, naming the module.
float static_scale(format::InputFormat inputs, float amax, std::string_view module);

}  // namespace sluice::weights
