// SPDX-License-Identifier: Apache-2.0
// A linear layer of a model: the weights in whatever format, its checkpoint name for calibration.
#pragma once

#include <memory>
#include <string>

#include "model/step.h"

namespace sluice::model {

class Dense {
 public:
  Dense() = default;
  // weight bf16 or f32 [N, K]; bias f32 [N] or empty.
  Dense(std::string name, Tensor weight, Tensor bias) : name_(std::move(name)), weight_(weight), bias_(bias) {}

  // x D [R, K] -> y [R, N], D or float32.
  void run(const Step& step, ops::ConstMatrix x, ops::Matrix y) const;

  int64_t rows() const { return weight_.dim(0); }
  int64_t cols() const { return weight_.dim(1); }
  int64_t weight_bytes() const { return weight_.bytes() + bias_.bytes(); }
  const std::string& name() const { return name_; }

 private:
  std::string name_;
  Tensor weight_, bias_;
};

}  // namespace sluice::model
