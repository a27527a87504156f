// SPDX-License-Identifier: Apache-2.0
// One or more linear layers of a model that read the same rows, as one product where their formats allow it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "model/forward_context.h"
#include "ops/linear.h"

namespace sluice::model {

class Dense {
 public:
  Dense() = default;
  // A product, and the checkpoint names of the modules whose rows it holds, for calibration.
  Dense(std::vector<std::string> names, std::shared_ptr<const ops::Linear> linear);
  // The outputs of `next` follow those of this one in y.
  void append(Dense next);

  // x D [R, K] -> y [R, rows()], D or float32.
  void run(const ForwardContext& forward, const ops::LinearInput& x, ops::Matrix y) const;
  // How products of `rows` rows take rows that are rounded already; plain: as values.
  ops::Rounding rounding(int64_t rows) const;

  // The product, if it is one.
  const ops::Linear* linear() const { return products_.size() == 1 ? products_[0].linear.get() : nullptr; }
  int64_t rows() const { return rows_; }
  int64_t weight_bytes() const;

 private:
  struct Product {
    std::vector<std::string> names;
    std::shared_ptr<const ops::Linear> linear;
  };
  std::vector<Product> products_;
  int64_t rows_ = 0;
};

}  // namespace sluice::model
