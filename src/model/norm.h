// SPDX-License-Identifier: Apache-2.0
// A root-mean-square norm with its weight.
#pragma once

#include "model/step.h"
#include "ops/norm.h"

namespace sluice::model {

struct Norm {
  Tensor weight;  // f32 [n]
  float eps = 1e-6f;

  explicit operator bool() const { return !weight.empty(); }
  void run(const Step& step, ops::ConstMatrix x, ops::Matrix y) const {
    ops::rms_norm(step.ctx, x, weight.as<float>(), eps, y);
  }
  void run_heads(const Step& step, ops::Matrix x) const {
    ops::rms_norm_heads(step.ctx, x, weight.elements(), weight.as<float>(), eps);
  }
};

}  // namespace sluice::model
