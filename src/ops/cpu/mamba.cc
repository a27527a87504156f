// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <utility>

#include "base/math.h"
#include "ops/cpu/clones.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/parallel.h"
#include "ops/cpu/row.h"

namespace sluice::ops::cpu {

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

struct ScanRow {
  int64_t n, p;  // values of the state per column, and columns
  float decay, dt, skip;
};
// state [n, p] in place, b and c [n], x and y [p]. The arrays are parameters of their own, as the compiler heeds
// __restrict of parameters.
SLUICE_CLONES void scan_row(const ScanRow& row, float* __restrict state, const float* __restrict x,
                            const float* __restrict b, const float* __restrict c, float* __restrict y) {
  const auto [n, p, decay, dt, skip] = row;
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

void CpuOps::causal_conv(const Batch& batch, const MambaShape& shape, ConstMatrix xbc, const Tensor& weight,
                         const Tensor& bias, const States& states, Matrix out) {
  const int64_t channels = shape.channels(), taps = shape.taps, pieces = ceil_div(channels, kChannelPiece);
  const float* biases = bias.empty() ? nullptr : bias.as<float>();
  parallel(ctx(), batch.sequences * pieces, xbc.rows * channels * (taps + 16), [&](int64_t task, int) {
    const int64_t s = task / pieces, first = task % pieces * kChannelPiece;
    const int64_t n = std::min(kChannelPiece, channels - first), begin = batch.row_begin[s];
    float ring[kMaxTaps][kChannelPiece];
    const float* window[kMaxTaps];
    for (int64_t t = 0; t + 1 < taps; ++t) {
      if (batch.state_in[s] < 0)
        std::fill_n(ring[t], n, 0.0f);
      else
        std::copy_n(states.at(batch.state_in[s]) + t * channels + first, n, ring[t]);
    }
    for (int64_t row = begin; row < batch.row_begin[s + 1]; ++row) {
      const int64_t r = row - begin;
      load(offset(xbc.row(row), xbc.dtype, first), xbc.dtype, ring[(r + taps - 1) % taps], n);
      for (int64_t t = 0; t < taps; ++t) window[t] = ring[(r + t) % taps];
      float* y = static_cast<float*>(out.row(row)) + first;
      convolve(window, weight.as<float>() + first, channels, taps, biases != nullptr ? biases + first : nullptr, y, n);
      round_to(xbc.dtype, y, n);
      silu(y, y, n);
      round_to(xbc.dtype, y, n);
      if (batch.state_out[row] < 0) continue;
      float* state = states.at(batch.state_out[row]) + first;  // the taps - 1 rows that end with this one
      for (int64_t t = 0; t + 1 < taps; ++t) std::copy_n(ring[(r + 1 + t) % taps], n, state + t * channels);
    }
  });
}

void CpuOps::state_scan(const Batch& batch, const MambaShape& shape, ConstMatrix xbc, ConstMatrix dt,
                        const StateScanOptions& options, const States& states, Matrix y) {
  const int64_t size = shape.state * shape.head_dim;
  parallel(ctx(), batch.sequences * shape.heads, xbc.rows * shape.heads * size * 4, [&](int64_t task, int) {
    const int64_t s = task / shape.heads, h = task % shape.heads, g = h / (shape.heads / shape.groups);
    const int64_t end = batch.row_begin[s + 1];
    // The recurrence runs in the place where the next state is stored; the last row stores one.
    const float* from = batch.state_in[s] < 0 ? nullptr : states.at(batch.state_in[s]) + h * size;
    float* state = nullptr;
    for (int64_t r = batch.row_begin[s]; r < end; ++r) {
      if (state == nullptr) {
        int64_t stored = r;
        while (batch.state_out[stored] < 0) ++stored;
        state = states.at(batch.state_out[stored]) + h * size;
        if (from == nullptr)
          std::fill_n(state, size, 0.0f);
        else if (from != state)
          std::copy_n(from, size, state);
      }
      const auto* row = static_cast<const float*>(xbc.row(r));
      float step = 0;
      load(offset(dt.row(r), dt.dtype, h), dt.dtype, &step, 1);
      step = softplus(step + options.dt_bias.as<float>()[h]);
      const float* b = row + shape.inner() + g * shape.state;
      const ScanRow scan{shape.state, shape.head_dim, std::exp(step * options.a.as<float>()[h]), step,
                         options.skip.as<float>()[h]};
      scan_row(scan, state, row + h * shape.head_dim, b, b + shape.groups * shape.state,
               static_cast<float*>(y.row(r)) + h * shape.head_dim);
      if (batch.state_out[r] >= 0) from = std::exchange(state, nullptr);
    }
  });
}

void CpuOps::copy_states(const States& states, std::span<const std::pair<int32_t, int32_t>> places) {
  for (const auto& [from, to] : places) std::copy_n(states.at(from), states.floats, states.at(to));
}

}  // namespace sluice::ops::cpu
