// SPDX-License-Identifier: Apache-2.0
// A linear layer of a model: the packed weights, and its checkpoint name for calibration.
#pragma once

#include <memory>
#include <string>

#include "model/step.h"
#include "ops/linear.h"

namespace sluice::model {

class Dense {
 public:
  Dense() = default;
  Dense(std::string name, std::shared_ptr<const ops::Linear> linear)
      : name_(std::move(name)), linear_(std::move(linear)) {}
  // Weights that the checkpoint stores in float32 (some routers), [N, K], multiplied as they are; bias f32 [N] or
  // empty.
  Dense(std::string name, Tensor weight, Tensor bias)
      : name_(std::move(name)), weight_(std::move(weight)), bias_(std::move(bias)) {}

  // x D [R, K] -> y [R, N], D or float32.
  void run(const Step& step, ops::ConstMatrix x, ops::Matrix y) const;

  int64_t rows() const { return linear_ ? linear_->outputs() : weight_.dim(0); }
  int64_t weight_bytes() const { return linear_ ? linear_->weight_bytes() : weight_.bytes(); }

 private:
  void run_floats(const Step& step, ops::ConstMatrix x, ops::Matrix y) const;
  void observe(weights::ActivationObserver& activations, ops::ConstMatrix x) const;

  std::string name_;
  std::shared_ptr<const ops::Linear> linear_;
  Tensor weight_, bias_;  // without linear_
};

}  // namespace sluice::model
