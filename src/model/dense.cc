// SPDX-License-Identifier: Apache-2.0
#include "model/dense.h"

#include <algorithm>

#include "base/math.h"
#include "ops/parallel.h"
#include "ops/row.h"
#include "ops/tile.h"

namespace sluice::model {

void Dense::run(const Step& step, ops::ConstMatrix x, ops::Matrix y) const {
  ops::Workspace::Scope scope(step.workspace);
  const int64_t n = rows(), k = cols(), stride = round_up<int64_t>(k, 16);
  float* xs = step.workspace.take<float>(x.rows * stride);
  for (int64_t r = 0; r < x.rows; ++r) {
    ops::load(x.row(r), x.dtype, xs + r * stride, k);
    std::fill(xs + r * stride + k, xs + (r + 1) * stride, 0.0f);
  }
  const int64_t floats = ops::kTile * (stride + 1);
  float* memory = step.workspace.take<float>(floats * step.ctx.pool.size());
  ops::parallel(step.ctx, ceil_div(n, ops::kTile), x.rows * n * k, [&](int64_t t, int worker) {
    float *tile = memory + worker * floats, *result = tile + ops::kTile * stride;
    const int64_t first = t * ops::kTile, count = std::min(ops::kTile, n - first);
    for (int64_t i = 0; i < count; ++i) {
      ops::load(ops::offset(weight_.data(), weight_.dtype(), (first + i) * k), weight_.dtype(), tile + i * stride, k);
      std::fill(tile + i * stride + k, tile + (i + 1) * stride, 0.0f);
    }
    for (int64_t r = 0; r < x.rows; ++r) {
      ops::dot_rows(xs + r * stride, tile, stride, count, 1.0f, result);
      if (!bias_.empty()) ops::add(result, bias_.as<float>() + first, result, count);
      ops::store(result, ops::offset(y.row(r), y.dtype, first), y.dtype, count);
    }
  });
}

}  // namespace sluice::model
