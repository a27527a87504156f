// SPDX-License-Identifier: Apache-2.0
#include "model/dense.h"

#include <algorithm>

#include "base/math.h"
#include "ops/parallel.h"
#include "ops/row.h"
#include "ops/tile.h"

namespace sluice::model {

void Dense::run(const Step& step, ops::ConstMatrix x, ops::Matrix y) const {
  if (step.observer != nullptr && step.observer->activations() != nullptr) observe(*step.observer->activations(), x);
  if (linear_)
    linear_->run(step.ctx, x, y);
  else
    run_floats(step, x, y);
}

void Dense::run_floats(const Step& step, ops::ConstMatrix x, ops::Matrix y) const {
  ops::Workspace::Scope scope(step.workspace);
  const int64_t n = weight_.dim(0), k = weight_.dim(1), stride = round_up<int64_t>(k, 16);
  const auto pad = [&](const void* src, DType dtype, float* dst) {
    ops::load(src, dtype, dst, k);
    std::fill(dst + k, dst + stride, 0.0f);
  };
  float* xs = step.workspace.take<float>(x.rows * stride);
  for (int64_t r = 0; r < x.rows; ++r) pad(x.row(r), x.dtype, xs + r * stride);
  const int64_t floats = ops::kTile * (stride + 1);
  float* memory = step.workspace.take<float>(floats * step.ctx.pool.size());
  ops::parallel(step.ctx, ceil_div(n, ops::kTile), x.rows * n * k, [&](int64_t t, int worker) {
    float *tile = memory + worker * floats, *result = tile + ops::kTile * stride;
    const int64_t first = t * ops::kTile, count = std::min(ops::kTile, n - first);
    for (int64_t i = 0; i < count; ++i) pad(weight_.as<float>() + (first + i) * k, DType::f32, tile + i * stride);
    for (int64_t r = 0; r < x.rows; ++r) {
      ops::dot_rows(xs + r * stride, tile, stride, count, 1.0f, result);
      if (!bias_.empty()) ops::add(result, bias_.as<float>() + first, result, count);
      ops::store(result, ops::offset(y.row(r), y.dtype, first), y.dtype, count);
    }
  });
}

void Dense::observe(weights::ActivationObserver& activations, ops::ConstMatrix x) const {
  float piece[ops::kPiece];
  for (int64_t r = 0; r < x.rows; ++r)
    for (int64_t i = 0; i < x.cols; i += ops::kPiece) {
      const int64_t n = std::min(ops::kPiece, x.cols - i);
      ops::load(ops::offset(x.row(r), x.dtype, i), x.dtype, piece, n);
      activations.observe(name_, piece, n);
    }
}

}  // namespace sluice::model
