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

// A head's state, float32 [n, p] in place, and the factor of x in its results.
struct HeadState {
  float* values;
  int64_t n, p;
  float skip;
};
// One row of a batch as one head sees it: x and y [p], b and c [n].
struct HeadRow {
  const float *x, *b, *c;
  float* y;
  float step, decay;
};

// A value of the state takes five operations per token; loading and storing it each time, and a sum with it, took
// longer than these. Blocks of four rows and as many columns as a vector has stay in registers over two tokens: heads
// of 64 with states of 128 scan prompts in 0.68 of the time with 512-bit vectors, in 0.72 with 256-bit and in 0.8 with
// 128-bit ones. Columns go by 64 at a time, a constant that spares the blocks the compiler's loops over remainders.
constexpr int kScanRows = 4, kScanTokens = 2;
constexpr int64_t kScanColumns = 64;
constexpr int64_t kRowsAhead = 16;  // rows of the state from a block to the one whose cache lines are asked for

// Inlined by force: GCC 12 drops the call of a function that does nothing but prefetch.
inline __attribute__((always_inline)) void prefetch(const float* x, int64_t n) {
  constexpr int64_t kLine = 16;  // floats of a cache line
  for (int64_t i = 0; i < n; i += kLine) __builtin_prefetch(x + i);
}

// Rows [first, first + kRows) and columns [column, column + width) of the state: sums[t][j] += c . S of token t. Every
// column adds up the rows in order, whatever the block and the number of tokens: the cuts do not show in the bits.
template <int kTokens, int kRows>
inline __attribute__((always_inline)) void scan_rows(const HeadState& state, const HeadRow* tokens, int64_t first,
                                                     int64_t column, int64_t width, float* const* sums) {
  float scaled[kTokens][kRows], factors[kTokens][kRows], decay[kTokens];
  const float* x[kTokens];
  for (int t = 0; t < kTokens; ++t) {
    for (int r = 0; r < kRows; ++r) {
      scaled[t][r] = tokens[t].step * tokens[t].b[first + r];
      factors[t][r] = tokens[t].c[first + r];
    }
    decay[t] = tokens[t].decay;
    x[t] = tokens[t].x + column;
  }
  const int64_t p = state.p;
  float* values = state.values + first * p + column;
#pragma GCC ivdep  // no column touches what belongs to another
  for (int64_t j = 0; j < width; ++j) {
    float s[kRows];
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) s[r] = values[r * p + j];
#pragma GCC unroll 2
    for (int t = 0; t < kTokens; ++t) {
      const float xj = x[t][j];
      float sum = sums[t][j];
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        s[r] = s[r] * decay[t] + scaled[t][r] * xj;
        sum += factors[t][r] * s[r];
      }
      sums[t][j] = sum;
    }
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) values[r * p + j] = s[r];
  }
}

// Columns [column, column + width) of the state, at most kScanColumns.
template <int kTokens>
inline __attribute__((always_inline)) void scan_columns(const HeadState& state, const HeadRow* tokens, int64_t column,
                                                        int64_t width) {
  float values[kTokens][kScanColumns] = {};
  float* sums[kTokens];
  for (int t = 0; t < kTokens; ++t) sums[t] = values[t];
  int64_t i = 0;
  for (; i + kScanRows <= state.n; i += kScanRows) {
    // The state of a decoded token comes from memory: asked for ahead, it takes about 0.8 of the time.
    if (kTokens == 1 && column == 0 && i + kRowsAhead + kScanRows <= state.n)
      prefetch(state.values + (i + kRowsAhead) * state.p, kScanRows * state.p);
    scan_rows<kTokens, kScanRows>(state, tokens, i, column, width, sums);
  }
  for (; i < state.n; ++i) scan_rows<kTokens, 1>(state, tokens, i, column, width, sums);
  for (int t = 0; t < kTokens; ++t)
    for (int64_t j = column; j < column + width; ++j)
      tokens[t].y[j] = values[t][j - column] + state.skip * tokens[t].x[j];
}

template <int kTokens>
inline __attribute__((always_inline)) void scan(const HeadState& state, const HeadRow* tokens) {
  int64_t j = 0;
  for (; j + kScanColumns <= state.p; j += kScanColumns) scan_columns<kTokens>(state, tokens, j, kScanColumns);
  if (j < state.p) scan_columns<kTokens>(state, tokens, j, state.p - j);
}

SLUICE_CLONES void scan_token(const HeadState& state, const HeadRow* token) { scan<1>(state, token); }
SLUICE_CLONES void scan_tokens(const HeadState& state, const HeadRow* tokens) { scan<kScanTokens>(state, tokens); }

float softplus(float x) { return x > 20.0f ? x : std::log1p(std::exp(x)); }

// One head of a batch.
struct Head {
  const MambaShape& shape;
  ConstMatrix xbc, dt;
  const StateScanOptions& options;
  Matrix y;
  int64_t head, group;

  const void* step(int64_t r) const { return offset(dt.row(r), dt.dtype, head); }
  // Without step and decay.
  HeadRow place(int64_t r) const {
    const auto* row = static_cast<const float*>(xbc.row(r));
    const float* b = row + shape.inner() + group * shape.state;
    const int64_t first = head * shape.head_dim;
    return {row + first, b, b + shape.groups * shape.state, static_cast<float*>(y.row(r)) + first, 0, 0};
  }
  HeadRow row(int64_t r) const {
    HeadRow out = place(r);
    float raw = 0;
    load(step(r), dt.dtype, &raw, 1);
    out.step = softplus(raw + options.dt_bias.as<float>()[head]);
    out.decay = std::exp(out.step * options.a.as<float>()[head]);
    return out;
  }

  // The recurrence over rows [begin, end) of a sequence that ends before row `sequence_end`.
  void run(float* values, int64_t begin, int64_t end, int64_t sequence_end) const {
    const HeadState state{values, shape.state, shape.head_dim, options.skip.as<float>()[head]};
    for (int64_t r = begin; r < end;) {
      const int64_t count = end - r < kScanTokens ? 1 : kScanTokens;
      HeadRow tokens[kScanTokens];
      for (int64_t t = 0; t < count; ++t) tokens[t] = row(r + t);
      r += count;
      // Rows lie some pages apart, across which the hardware does not look ahead.
      for (int64_t t = r; t < std::min(r + count, sequence_end); ++t) {
        const HeadRow next = place(t);
        __builtin_prefetch(step(t));
        prefetch(next.x, shape.head_dim), prefetch(next.y, shape.head_dim);
        prefetch(next.b, shape.state), prefetch(next.c, shape.state);
      }
      (count == 1 ? scan_token : scan_tokens)(state, tokens);
    }
  }
};
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
  // Each thread takes a run of heads. Two threads on neighbouring heads of the same rows took a fifth longer for a
  // prompt, likely because lines that the hardware fetches ahead for one are those that the other writes.
  const int64_t run = ceil_div<int64_t>(shape.heads, ctx().pool.size()), runs = ceil_div(shape.heads, run);
  parallel(ctx(), batch.sequences * runs * run, xbc.rows * shape.heads * size * 4, [&](int64_t task, int) {
    const int64_t s = task / (runs * run), h = task % runs * run + task / runs % run;
    if (h >= shape.heads) return;
    const Head head{shape, xbc, dt, options, y, h, h / (shape.heads / shape.groups)};
    const float* from = batch.state_in[s] < 0 ? nullptr : states.at(batch.state_in[s]) + h * size;
    for (int64_t r = batch.row_begin[s]; r < batch.row_begin[s + 1];) {
      // The recurrence runs in the place where the next state is stored; the last row stores one.
      int64_t stored = r;
      while (batch.state_out[stored] < 0) ++stored;
      float* state = states.at(batch.state_out[stored]) + h * size;
      if (from == nullptr)
        std::fill_n(state, size, 0.0f);
      else if (from != state)
        std::copy_n(from, size, state);
      head.run(state, r, stored + 1, batch.row_begin[s + 1]);
      from = state;
      r = stored + 1;
    }
  });
}

void CpuOps::copy_states(const States& states, std::span<const std::pair<int32_t, int32_t>> places) {
  for (const auto& [from, to] : places) std::copy_n(states.at(from), states.floats, states.at(to));
}

}  // namespace sluice::ops::cpu
