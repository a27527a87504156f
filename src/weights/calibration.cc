// SPDX-License-Identifier: Apache-2.0
#include "weights/calibration.h"

#include <bit>
#include <cmath>

#include "base/error.h"
#include "format/quantize.h"

namespace sluice::weights {

using format::InputFormat;

void ActivationObserver::observe(std::string_view module, const float* x, int64_t count) {
  uint32_t bits = 0;  // orders NaN above infinity above numbers, and keeps both
  for (int64_t i = 0; i < count; ++i) bits = format::amax_bits(bits, x[i]);
  observe_amax(module, std::bit_cast<float>(bits));
}

void ActivationObserver::observe_amax(std::string_view module, float amax) {
  std::lock_guard lock(mutex_);
  float& largest = amax_.try_emplace(std::string(module), 0.0f).first->second;
  if (largest == largest && !(amax <= largest)) largest = amax;  // NaN stays
}

std::map<std::string, float> ActivationObserver::amax() const {
  std::lock_guard lock(mutex_);
  return amax_;
}

ExpertInputs expert_inputs(std::string_view experts_module) {
  const std::string module(experts_module);
  return {module + ".gemm1", module + ".gemm2"};
}

float static_scale(InputFormat inputs, float amax, std::string_view module) {
  check(inputs == InputFormat::fp8_static || inputs == InputFormat::nvfp4,
        "inputs of format {} have no calibrated scale; fp8_static and nvfp4 have one",
        name_of(format::kInputFormats, inputs));
  check_file(std::isfinite(amax), "the inputs of {} reached {} during calibration; the model's own run is not finite",
             module, amax);
  return inputs == InputFormat::nvfp4 ? format::nvfp4_global_scale(amax) : format::fp8_scale(amax);
}

}  // namespace sluice::weights
