// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "activation/activations.h"
#include "kernels/ptx/sync.cuh"
#include "kernels/sm90/launch.cuh"
#include "kernels/sm90/quantize/rows.cuh"
#include "kernels/sm90/tuning.h"

namespace sluice::sm90 {

namespace {

constexpr int kThreads = 256;

// kWide: the columns come in whole eights, aligned.
template <bool kWide>
__device__ inline void load_row8(const float* row, int columns, int column, float (&v)[8]) {
  if constexpr (kWide) {
    if (column < columns) return load8(row + column, v);
#pragma unroll
    for (int i = 0; i < 8; ++i) v[i] = 0.0f;
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i) v[i] = column + i < columns ? row[column + i] : 0.0f;
  }
}

// To e4m3 and back, 128 columns (16 neighbouring lanes) a scale.
__device__ inline void round_group128(float (&x)[8]) {
  const float s = group_scale(amax_lanes(amax8(x), 16));
#pragma unroll
  for (int i = 0; i < 8; ++i) x[i] = ptx::divide(x[i], s);
  e4m3_values4(x);
  e4m3_values4(x + 4);
#pragma unroll
  for (int i = 0; i < 8; ++i) x[i] *= s;
}

// Eight columns of a row of GEMM1's float result. kRaw: its two halves, each rounded to e4m3 groups of 128 columns,
// then activated; all lanes must call it together.
template <bool kRaw, bool kWide>
__device__ inline void load_result8(const RowsArgs& a, int64_t row, int expert, int column, float (&v)[8]) {
  const int columns = a.source.columns;
  if constexpr (!kRaw) {
    load_row8<kWide>(a.source.float_rows + row * columns, columns, column, v);
  } else {
    float gate[8] = {};
    const float* base = a.source.float_rows + row * (a.source.gated ? 2 : 1) * columns;
    load_row8<kWide>(base, columns, column, v);
    if (a.source.gated) load_row8<kWide>(base + columns, columns, column, gate);
    round_group128(v);
    if (a.source.gated) round_group128(gate);
    const int64_t bias_base = static_cast<int64_t>(expert) * columns;
    if (a.activation.bias != nullptr) add_bias8(a.activation.bias, bias_base, column, columns, v);
    if (a.activation.bias_gate != nullptr) add_bias8(a.activation.bias_gate, bias_base, column, columns, gate);
    activation::Params params;
    if (a.activation.alpha != nullptr) params.alpha = a.activation.alpha[expert];
    if (a.activation.beta != nullptr) params.beta = a.activation.beta[expert];
    if (a.activation.limit != nullptr) params.limit = a.activation.limit[expert];
    activate(a.source.act, v, gate, params);
#pragma unroll
    for (int i = 0; i < 8; ++i)
      if (column + i >= columns) v[i] = 0.0f;
  }
}

// kWarps warps per row, of which a thread holds kHeld pieces; longer rows are read in parts, and twice if they have a
// scale of their own. A block has rows of one tile. kTokenCodes: the rounding is fp8_token to codes.
template <int kWarps, int kHeld, bool kTokenCodes, bool kRaw, bool kWide>
__global__ void __launch_bounds__(kThreads) requantize_kernel(const __grid_constant__ RowsArgs a) {
  constexpr int kRowThreads = 32 * kWarps, kRows = kThreads / kRowThreads, kStep = 8 * kRowThreads,
                kPart = kHeld * kStep;
  __shared__ uint32_t maxima[2][kThreads / 32];  // rows of a block take turns
  touch_parameters(a);
  ptx::griddepcontrol_launch_dependents();
  ptx::griddepcontrol_wait();
  const RowTile tile = a.gather.tiles[blockIdx.x];  // beyond the last one anything
  if (static_cast<int>(blockIdx.x) >= a.gather.header->num_tiles) return;
  const int warp = static_cast<int>(threadIdx.x) / 32, thread = static_cast<int>(threadIdx.x) % kRowThreads;
  const int padded_columns = a.out.k_blocks * (kTokenCodes || a.out.e4m3 ? 128 : 64);
  const bool scaled = kTokenCodes || a.out.row_scale != nullptr;
  const int group = kTokenCodes ? 0 : group_columns(a.out.round);
  int turn = 0;
  for (int base = static_cast<int>(blockIdx.y) * kRows; base < tile.count;
       base += static_cast<int>(gridDim.y) * kRows) {
    const int n = base + warp / kWarps;
    const bool real = n < tile.count;
    const int64_t row = static_cast<int64_t>(tile.row_base) + (real ? n : base);
    float v[kHeld][8];
    const auto load = [&](int part) {
#pragma unroll
      for (int p = 0; p < kHeld; ++p)
        if (part + p * kStep < padded_columns)
          load_result8<kRaw, kWide>(a, row, tile.expert, part + p * kStep + 8 * thread, v[p]);
    };
    float row_amax = 0.0f;
    if (scaled) {
      uint32_t bits = 0;
      for (int part = 0; part < padded_columns; part += kPart) {
        load(part);
#pragma unroll
        for (int p = 0; p < kHeld; ++p)
          if (part + p * kStep < padded_columns) bits = max(bits, amax8(v[p]));
      }
      bits = __reduce_max_sync(0xffffffffu, bits);
      if constexpr (kWarps > 1) {
        if (threadIdx.x % 32 == 0) maxima[turn][warp] = bits;
        __syncthreads();
#pragma unroll
        for (int i = 0; i < kWarps; ++i) bits = max(bits, maxima[turn][warp / kWarps * kWarps + i]);
        turn ^= 1;
      }
      row_amax = format::amax_value(bits);
    }
    const RowRounding rounding = row_rounding(a, row_amax);
    const Target target = target_of(a, tile, n);
    for (int part = 0; part < padded_columns; part += kPart) {
      if (!scaled || padded_columns > kPart) load(part);
#pragma unroll
      for (int p = 0; p < kHeld; ++p) {
        if (part + p * kStep >= padded_columns) break;
        const int column = part + p * kStep + 8 * thread;
        if constexpr (kTokenCodes) {
          if (real && column < padded_columns)
            store_codes8(target, column, rounded_e4m3(Round::fp8_token, v[p], rounding.divisor));
        } else {
          const uint32_t amax = group != 0 ? amax_lanes(amax8(v[p]), group / 8) : 0;
          if (!real || column >= padded_columns) continue;
          const Rounded8 piece = round8(a, rounding, v[p], amax);
          const bool first = (column & 127) == 0;
          store8(a, target, column, piece.bf16, piece.codes, piece.scale, first);
          if (!a.out.e4m3 && a.out.round == Round::fp8_group && first) store_scale(target, column, piece.scale);
        }
      }
    }
    if (scaled && real && thread == 0) a.out.row_scale[row] = rounding.row_scale;
  }
}

struct Launch {
  const RowsArgs& args;
  int64_t max_tiles, max_rows;
  int max_n;
  Stream stream;
  bool pdl;

  // Blocks for four times the rows of a mean tile; of larger tiles a block takes several rows, one after the other.
  template <int kWarps>
  void run(void (*kernel)(RowsArgs)) const {
    constexpr int kRows = kThreads / (32 * kWarps);
    const int64_t mean = ceil_div(max_rows, max_tiles);
    const int64_t parts = std::min<int64_t>(ceil_div<int64_t>(4 * mean, kRows), ceil_div(max_n, kRows));
    launch(kernel, dim3(static_cast<unsigned>(max_tiles), static_cast<unsigned>(parts)), kThreads, 0, stream, pdl,
           args);
  }
  template <bool kTokenCodes>
  void run_wide() const {
    const int columns = args.source.columns;
    // Few rows are spread over as many threads as have a piece each.
    const bool spread = max_rows <= tuning::kSpreadRequantizedRows;
    if (columns <= 1024)
      spread ? run<4>(requantize_kernel<4, 1, kTokenCodes, false, true>)
             : run<1>(requantize_kernel<1, 4, kTokenCodes, false, true>);
    else if (columns <= 2048)
      spread ? run<8>(requantize_kernel<8, 1, kTokenCodes, false, true>)
             : run<2>(requantize_kernel<2, 4, kTokenCodes, false, true>);
    else if (columns <= 4096 && !spread)
      run<4>(requantize_kernel<4, 4, kTokenCodes, false, true>);
    else
      run<8>(requantize_kernel<8, 4, kTokenCodes, false, true>);
  }
};

}  // namespace

void launch_requantize(const RowsArgs& args, int64_t max_tiles, int max_n, int64_t max_rows, Stream stream, bool pdl) {
  const Launch l{args, max_tiles, max_rows, max_n, stream, pdl};
  const bool wide = args.source.columns % 8 == 0;
  if (args.source.raw)
    l.run<4>(wide ? requantize_kernel<4, 2, false, true, true> : requantize_kernel<4, 2, false, true, false>);
  else if (!wide)
    l.run<4>(requantize_kernel<4, 4, false, false, false>);
  else if (args.out.round == Round::fp8_token && args.out.e4m3)
    l.run_wide<true>();
  else
    l.run_wide<false>();
}

}  // namespace sluice::sm90
