// SPDX-License-Identifier: Apache-2.0
// One block per row, or, where no scale is of a whole row, several that share its columns. All columns of a row that is
// not very long are under way at once, and are read once.
#include "kernels/sm90/batch_rows/round_rows.h"

#include "kernels/ptx/sync.cuh"
#include "kernels/sm90/few_rows/load.cuh"
#include "kernels/sm90/launch.cuh"
#include "kernels/sm90/quantize/input_round.h"
#include "kernels/sm90/quantize/rows.cuh"

namespace sluice::sm90 {

namespace {

constexpr int kThreads = 256, kColumns = 8 * kThreads;  // of the block at once

template <class X, bool kWide>
__global__ void __launch_bounds__(kThreads) round_rows_kernel(const __grid_constant__ RoundRowsArgs a) {
  __shared__ uint32_t shared[kThreads / 32];
  constexpr int kKept = 4;  // pieces of the row in registers
  const int row = static_cast<int>(blockIdx.x) / a.blocks_per_row,
            first = 8 * static_cast<int>(threadIdx.x) + static_cast<int>(blockIdx.x) % a.blocks_per_row * kColumns;
  const int step = a.blocks_per_row * kColumns;
  ptx::griddepcontrol_launch_dependents();  // the product begins with its weights
  ptx::griddepcontrol_wait();
  if (row >= real_tokens(a.num_rows, a.rows)) return;
  const X* x = static_cast<const X*>(a.x) + row * a.x_stride;
  const auto load = [&](int piece) { return load_eight<kWide>(x, first + piece * step, a.k, true); };
  Eight<X> kept[kKept];
#pragma unroll
  for (int i = 0; i < kKept; ++i) kept[i] = load(i);
  const int pieces = ceil_div(a.k, step);
  format::Nvfp4Global global = a.scale->global;
  const float inverse = a.scale->inverse;
  float divisor = inverse;  // of codes: fp8_static multiplies by it
  if (scales_rows(a.round)) {
    uint32_t bits = 0;
    const auto add = [&](const Eight<X>& from) {
      float v[8];
      widen(from, v);
      const uint32_t b = amax8(v);
      bits = b > bits ? b : bits;
    };
#pragma unroll
    for (int i = 0; i < kKept; ++i) add(kept[i]);
    for (int i = kKept; i < pieces; ++i) add(load(i));
    const float amax = block_max_bits<kThreads>(bits, shared);
    float factor;
    if (a.round == Round::nvfp4_token) {
      global = format::nvfp4_row_global(amax);
      factor = global.decode;
    } else {
      factor = divisor = format::fp8_scale(amax);
    }
    if (threadIdx.x == 0) a.row_factor[row] = factor;
  }
  const int group = group_columns(a.round);
  const auto store = [&](int piece, const Eight<X>& from) {
    const int column = first + piece * step;
    float v[8];
    widen(from, v);
    const uint32_t amax = group == 0 ? 0 : amax_lanes(amax8(v), group / 8);
    float of_group = divisor;
    if (a.round == Round::fp8_group) {
      of_group = group_scale(amax);
      if (column < a.k && column % 128 == 0)
        a.group_scales[static_cast<int64_t>(row) * ceil_div(a.k, 128) + column / 128] = of_group;
    }
    uint8_t* out = a.out + row * a.out_stride;
    if (a.e4m3) {
      const uint2 codes = rounded_e4m3(a.round, v, of_group);
      if (column < a.k) *reinterpret_cast<uint2*>(out + column) = codes;
    } else {
      const uint4 values = rounded_bf16(a.round, v, amax, global, inverse, of_group);
      if (column < a.k) *reinterpret_cast<uint4*>(out + 2 * column) = values;
    }
  };
#pragma unroll
  for (int i = 0; i < kKept; ++i)
    if (i < pieces) store(i, kept[i]);
  for (int i = kKept; i < pieces; ++i) store(i, load(i));
}

// Codes to the bf16 values that weights which are decoded are multiplied by.
__global__ void __launch_bounds__(kThreads) decode_rows_kernel(const __grid_constant__ RoundRowsArgs a) {
  const int row = static_cast<int>(blockIdx.x);
  ptx::griddepcontrol_launch_dependents();
  ptx::griddepcontrol_wait();
  if (row >= real_tokens(a.num_rows, a.rows)) return;
  for (int column = 8 * static_cast<int>(threadIdx.x); column < a.k; column += kColumns) {
    const uint2 codes =
        __ldcg(reinterpret_cast<const uint2*>(static_cast<const uint8_t*>(a.x) + row * a.x_stride + column));
    float v[8];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t pair = (i < 2 ? codes.x : codes.y) >> (16 * (i % 2));
      ptx::cvt_f32x2_f16x2(ptx::cvt_f16x2_e4m3x2(static_cast<uint16_t>(pair)), v[2 * i], v[2 * i + 1]);
    }
    *reinterpret_cast<uint4*>(a.out + row * a.out_stride + 2 * column) = {
        ptx::cvt_bf16x2_f32(v[1], v[0]), ptx::cvt_bf16x2_f32(v[3], v[2]), ptx::cvt_bf16x2_f32(v[5], v[4]),
        ptx::cvt_bf16x2_f32(v[7], v[6])};
  }
}

}  // namespace

void launch_round_rows(const RoundRowsArgs& args, Stream stream, bool pdl) {
  RoundRowsArgs a = args;
  const bool coded = args.source == BatchSource::e4m3, f32 = args.source == BatchSource::f32;
  a.blocks_per_row = coded || scales_rows(args.round) ? 1 : ceil_div(args.k, kColumns);
  const auto run = [&](auto kernel) {
    launch(kernel, static_cast<unsigned>(a.rows * a.blocks_per_row), kThreads, 0, stream, pdl, a);
  };
  if (coded)
    run(decode_rows_kernel);
  else if (args.k % 8 == 0)
    f32 ? run(round_rows_kernel<float, true>) : run(round_rows_kernel<bf16_t, true>);
  else
    f32 ? run(round_rows_kernel<float, false>) : run(round_rows_kernel<bf16_t, false>);
}

}  // namespace sluice::sm90
