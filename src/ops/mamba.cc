// SPDX-License-Identifier: Apache-2.0
#include "ops/mamba.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/math.h"
#include "ops/clones.h"
#include "ops/parallel.h"
#include "ops/row.h"

namespace sluice::ops {

namespace {
constexpr int64_t kChannelPiece = 256;

// weight [taps] rows `stride` apart; window: the taps - 1 rows before and the new one, oldest first.
SLUICE_CLONES void convolve(const float* const* window, const float* weight, int64_t stride, int64_t taps,
                            const float* bias, float* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = bias != nullptr ? bias[i] : 0.0f;
  for (int64_t t = 0; t < taps; ++t) {
    const float *x = window[t], *w = weight + t * stride;
    for (int64_t i = 0; i < n; ++i) out[i] += w[i] * x[i];
  }
}

// state [n, p] in place, y [p].
SLUICE_CLONES void scan_row(float* __restrict state, const float* __restrict x, const float* __restrict b,
                            const float* __restrict c, int64_t n, int64_t p, float decay, float dt, float skip,
                            float* __restrict y) {
  for (int64_t j = 0; j < p; ++j) y[j] = 0.0f;
  for (int64_t i = 0; i < n; ++i, state += p) {
    const float scaled = dt * b[i], ci = c[i];
    for (int64_t j = 0; j < p; ++j) {
      const float s = state[j] * decay + scaled * x[j];
      state[j] = s;
      y[j] += ci * s;
    }
  }
  for (int64_t j = 0; j < p; ++j) y[j] += skip * x[j];
}

float softplus(float x) { return x > 20.0f ? x : std::log1p(std::exp(x)); }
}  // namespace

void causal_conv(Context& ctx, const MambaShape& shape, ConstMatrix xbc, const float* weight, const float* bias,
                 std::span<const Sequence> sequences, const StateSlots& states, Matrix out) {
  const int64_t channels = shape.channels(), taps = shape.taps, pieces = ceil_div(channels, kChannelPiece);
  const auto tasks = static_cast<int64_t>(sequences.size()) * pieces;
  parallel(ctx, tasks, xbc.rows * channels * (taps + 16), [&](int64_t task, int) {
    const Sequence& s = sequences[static_cast<size_t>(task / pieces)];
    const int64_t first = task % pieces * kChannelPiece, n = std::min(kChannelPiece, channels - first);
    float ring[kMaxTaps][kChannelPiece];
    const float* window[kMaxTaps];
    for (int64_t t = 0; t + 1 < taps; ++t) std::copy_n(states.at(s.slot, 0) + t * channels + first, n, ring[t]);
    const auto keep = [&](int64_t row, int64_t version) {  // the taps - 1 rows that end with `row`
      float* state = states.at(s.slot, version) + first;
      for (int64_t t = 0; t + 1 < taps; ++t) std::copy_n(ring[(row + 1 + t) % taps], n, state + t * channels);
    };
    for (int64_t r = 0; r < s.rows; ++r) {
      load(offset(xbc.row(s.first_row + r), xbc.dtype, first), xbc.dtype, ring[(r + taps - 1) % taps], n);
      for (int64_t t = 0; t < taps; ++t) window[t] = ring[(r + t) % taps];
      float* y = static_cast<float*>(out.row(s.first_row + r)) + first;
      convolve(window, weight + first, channels, taps, bias != nullptr ? bias + first : nullptr, y, n);
      round_to(xbc.dtype, y, n);
      silu(y, y, n);
      round_to(xbc.dtype, y, n);
      if (s.tentative) keep(r, r + 1);
    }
    if (!s.tentative && s.rows > 0) keep(s.rows - 1, 0);
  });
}

void state_scan(Context& ctx, const MambaShape& shape, ConstMatrix xbc, ConstMatrix dt, const float* dt_bias,
                const float* a, const float* skip, std::span<const Sequence> sequences, const StateSlots& states,
                Matrix y) {
  const int64_t size = shape.state * shape.head_dim;
  const auto tasks = static_cast<int64_t>(sequences.size()) * shape.heads;
  parallel(ctx, tasks, xbc.rows * shape.heads * size * 4, [&](int64_t task, int) {
    const Sequence& s = sequences[static_cast<size_t>(task / shape.heads)];
    const int64_t h = task % shape.heads, g = h / (shape.heads / shape.groups);
    float* state = states.at(s.slot, 0) + h * size;
    for (int64_t r = 0; r < s.rows; ++r) {
      if (s.tentative) {
        float* next = states.at(s.slot, r + 1) + h * size;
        std::copy_n(state, size, next);
        state = next;
      }
      const auto* row = static_cast<const float*>(xbc.row(s.first_row + r));
      float step = 0;
      load(offset(dt.row(s.first_row + r), dt.dtype, h), dt.dtype, &step, 1);
      step = softplus(step + dt_bias[h]);
      const float* b = row + shape.inner() + g * shape.state;
      scan_row(state, row + h * shape.head_dim, b, b + shape.groups * shape.state, shape.state, shape.head_dim,
               std::exp(step * a[h]), step, skip[h], static_cast<float*>(y.row(s.first_row + r)) + h * shape.head_dim);
    }
  });
}

}  // namespace sluice::ops
