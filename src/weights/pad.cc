// SPDX-License-Identifier: Apache-2.0
#include "weights/pad.h"

#include <cstring>

#include "base/math.h"
#include "weights/region.h"

namespace sluice::weights {

namespace {

Tensor pad_columns(const Tensor& t, int64_t cols) {
  if (t.empty() || t.dim(1) == cols) return t;
  Tensor wide(DType::f32, {t.dim(0), cols});
  wide.zero();
  for (int64_t e = 0; e < t.dim(0); ++e)
    std::memcpy(wide.as<float>() + e * cols, t.as<float>() + e * t.dim(1),
                static_cast<size_t>(t.dim(1)) * sizeof(float));
  return wide;
}

}  // namespace

QuantTensor pad(const QuantTensor& w, int64_t rows, int64_t cols) {
  check(rows >= w.rows && cols >= w.cols, "a matrix of {} x {} cannot be padded to {} x {}", w.rows, w.cols, rows,
        cols);
  if (rows == w.rows && cols == w.cols) return w;
  QuantTensor wide = make_quant_tensor(w.format, w.experts, rows, cols);
  fill_neutral(wide);
  for (int64_t e = 0; e < w.experts; ++e) copy_region(w, e, 0, 1, w.rows, {0, w.cols}, wide, e);
  return wide;
}

ExpertWeights pad(const ExpertWeights& w, int64_t inter_multiple, int64_t hidden_multiple) {
  check(inter_multiple >= 1 && hidden_multiple >= 1, "padding to multiples of {} and {}; they must be positive",
        inter_multiple, hidden_multiple);
  const int64_t inter = round_up(w.up.rows, inter_multiple), hidden = round_up(w.up.cols, hidden_multiple);
  ExpertWeights wide = w;
  wide.up = pad(w.up, inter, hidden);
  if (!w.gate.empty()) wide.gate = pad(w.gate, inter, hidden);
  wide.down = pad(w.down, hidden, inter);
  wide.bias_up = pad_columns(w.bias_up, inter);
  wide.bias_gate = pad_columns(w.bias_gate, inter);
  wide.bias_down = pad_columns(w.bias_down, hidden);
  return wide;
}

}  // namespace sluice::weights
