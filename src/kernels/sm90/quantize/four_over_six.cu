// SPDX-License-Identifier: Apache-2.0
// A kernel of its own: a thread has the 16 columns of a block scale, because their errors are summed in order, and
// tries both scales on registers.
#include "kernels/sm90/quantize/four_over_six.h"

#include "kernels/ptx/sync.cuh"
#include "kernels/sm90/launch.cuh"
#include "kernels/sm90/quantize/rows.cuh"
#include "kernels/sm90/quantize/tensor.cuh"

namespace sluice::sm90 {

namespace {

using format::BlockError;
using format::FourOverSix;
using format::FourOverSixFactors;

constexpr int kColumnsAtOnce = 16 * kQuantizeThreads;

__device__ __forceinline__ void load_columns16(const QuantizeArgs& a, int64_t row, int column, float (&v)[16]) {
  float half[8];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    load_columns8(a, row, column + 8 * h, half);
#pragma unroll
    for (int i = 0; i < 8; ++i) v[8 * h + i] = half[i];
  }
}

// By whole blocks of threads. Stores the scale of a row that has one.
__device__ inline FourOverSixFactors row_factors(const QuantizeArgs& a, int64_t row, int e4m3_max, uint32_t* shared) {
  if (a.coding == Coding::nvfp4)
    return format::four_over_six_tensor(a.encodes ? format::nvfp4_encode(*a.input_scale)
                                                  : format::nvfp4_global(*a.input_scale));
  uint32_t bits = 0;
  for (int column = 8 * static_cast<int>(threadIdx.x); column < a.cols; column += 8 * kQuantizeThreads) {
    float v[8];
    load_columns8(a, row, column, v);
    bits = max(bits, amax8(v));
  }
  const FourOverSixFactors f = format::four_over_six_row(block_max_bits<kQuantizeThreads>(bits, shared), e4m3_max);
  if (threadIdx.x == 0) a.row_scales[row] = f.global.decode;
  return f;
}

// One block per row, including the padding rows of the scale layout. How errors are made is known to the compiler.
template <BlockError kError, bool kFast>
__global__ void __launch_bounds__(kQuantizeThreads)
    four_over_six_kernel(const __grid_constant__ QuantizeArgs a, int e4m3_max, int64_t padded_rows) {
  __shared__ uint32_t shared[kQuantizeThreads / 32];
  ptx::griddepcontrol_wait();
  const FourOverSix how{true, e4m3_max, kError, kFast};
  const int64_t groups = ceil_div(a.cols, 16);
  const int64_t padded = padded_groups(a, groups);
  for (int64_t row = blockIdx.x; row < padded_rows; row += gridDim.x) {
    clear_padding(a, row, groups, padded);
    if (row >= a.rows) continue;
    const FourOverSixFactors factors = row_factors(a, row, e4m3_max, shared);
    for (int column = 16 * static_cast<int>(threadIdx.x); column < a.cols; column += kColumnsAtOnce) {
      float v[16];
      load_columns16(a, row, column, v);
      const format::FourOverSixBlock b = format::quantize_block_four_over_six(v, factors, how);
      store_scale(a, row, column / 16, groups, b.scale, 0.0f);
      store_codes(a, row, column, {static_cast<uint32_t>(b.codes), 0});
      if (column + 8 < a.cols) store_codes(a, row, column + 8, {static_cast<uint32_t>(b.codes >> 32), 0});
    }
  }
  ptx::griddepcontrol_launch_dependents();
}

}  // namespace

void launch_quantize_four_over_six(const QuantizeArgs& args, const FourOverSix& how, Stream stream, bool pdl) {
  if (args.rows == 0 || args.cols == 0) return;
  const QuantizeGrid grid = quantize_grid(args);
  auto* const kernel =
      how.error == BlockError::mse
          ? (how.fast ? four_over_six_kernel<BlockError::mse, true> : four_over_six_kernel<BlockError::mse, false>)
          : (how.fast ? four_over_six_kernel<BlockError::mae, true> : four_over_six_kernel<BlockError::mae, false>);
  launch(kernel, grid.blocks, kQuantizeThreads, 0, stream, pdl, args, how.e4m3_max, grid.padded_rows);
}

}  // namespace sluice::sm90
