// SPDX-License-Identifier: Apache-2.0
#include "kernels/sm90/prepare/quantize_weights.h"

#include <algorithm>

#include "base/math.h"
#include "format/quantize.h"
#include "kernels/sm90/launch.cuh"

namespace sluice::sm90 {

namespace {

using format::Format;

constexpr int kThreads = 256, kMaxBlocks = 2048;
constexpr int kBlock = 128;  // rows and columns of fp8_block

__device__ inline uint32_t magnitude(bf16_t x) { return (static_cast<uint32_t>(x) & 0x7fffu) << 16; }

// Of all threads of a block, to all.
__device__ inline uint32_t block_max(uint32_t v) {
  __shared__ uint32_t of_warp[kThreads / 32];
  v = __reduce_max_sync(0xffffffffu, v);
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = v;
  __syncthreads();
  v = of_warp[0];
#pragma unroll
  for (int i = 1; i < kThreads / 32; ++i) v = max(v, of_warp[i]);
  return v;
}

// Grid: parts of a matrix, matrices.
__global__ void __launch_bounds__(kThreads) matrix_amax_kernel(const __grid_constant__ QuantizeWeightsArgs a) {
  const int64_t size = a.rows * a.cols;
  const bf16_t* w = a.w + blockIdx.y * size;
  uint32_t largest = 0;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < size;
       i += static_cast<int64_t>(gridDim.x) * kThreads)
    largest = max(largest, magnitude(w[i]));
  largest = block_max(largest);
  if (threadIdx.x == 0) atomicMax(a.amax + blockIdx.y, largest);
}

// fp8_tensor. Grid: parts of a matrix, matrices.
__global__ void __launch_bounds__(kThreads) tensor_codes_kernel(const __grid_constant__ QuantizeWeightsArgs a) {
  const int64_t size = a.rows * a.cols, at = blockIdx.y * size;
  const float scale = format::fp8_scale(format::amax_value(a.amax[blockIdx.y]));
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < size;
       i += static_cast<int64_t>(gridDim.x) * kThreads)
    a.codes[at + i] = format::fp8_code(bf16_to_float(a.w[at + i]), scale);
  if (blockIdx.x == 0 && threadIdx.x == 0) static_cast<float*>(a.scales)[blockIdx.y] = scale;
}

// fp8_channel. Grid: rows of all matrices.
__global__ void __launch_bounds__(kThreads) channel_kernel(const __grid_constant__ QuantizeWeightsArgs a) {
  const int64_t row = blockIdx.x;
  const bf16_t* w = a.w + row * a.cols;
  uint32_t largest = 0;
  for (int64_t i = threadIdx.x; i < a.cols; i += kThreads) largest = max(largest, magnitude(w[i]));
  const float scale = format::fp8_scale(format::amax_value(block_max(largest)));
  for (int64_t i = threadIdx.x; i < a.cols; i += kThreads)
    a.codes[row * a.cols + i] = format::fp8_code(bf16_to_float(w[i]), scale);
  if (threadIdx.x == 0) static_cast<float*>(a.scales)[row] = scale;
}

// fp8_block. Grid: blocks of a row, rows of blocks, matrices. Neighbouring threads take neighbouring columns.
__global__ void __launch_bounds__(kThreads) block_kernel(const __grid_constant__ QuantizeWeightsArgs a) {
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kBlock + threadIdx.x % kBlock;
  const int64_t first = static_cast<int64_t>(blockIdx.y) * kBlock, end = min(first + kBlock, a.rows);
  const int64_t at = blockIdx.z * a.rows * a.cols + column;
  constexpr int kStep = kThreads / kBlock;
  uint32_t largest = 0;
  if (column < a.cols)
    for (int64_t r = first + threadIdx.x / kBlock; r < end; r += kStep)
      largest = max(largest, magnitude(a.w[at + r * a.cols]));
  const float scale = format::fp8_block_scale(format::amax_value(block_max(largest)));
  if (column < a.cols)
    for (int64_t r = first + threadIdx.x / kBlock; r < end; r += kStep)
      a.codes[at + r * a.cols] = format::fp8_code(bf16_to_float(a.w[at + r * a.cols]), scale);
  if (threadIdx.x == 0)
    static_cast<float*>(a.scales)[(blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x] = scale;
}

template <Format kFormat>
__device__ inline uint8_t quantize_group(const float* x, int count, format::Nvfp4Global g, uint8_t* codes) {
  if constexpr (kFormat == Format::mxfp8) return format::quantize_group_mxfp8(x, count, codes);
  if constexpr (kFormat == Format::mxfp4) return format::quantize_group_mxfp4(x, count, codes);
  return format::quantize_group_nvfp4(x, count, g, codes);
}

// A thread takes a group of columns. Grid: groups of a matrix, matrices.
template <Format kFormat>
__global__ void __launch_bounds__(kThreads) groups_kernel(const __grid_constant__ QuantizeWeightsArgs a) {
  constexpr int kGroup = kFormat == Format::nvfp4 ? 16 : 32, kCodesOfByte = kFormat == Format::mxfp8 ? 1 : 2;
  const int64_t of_row = (a.cols + kGroup - 1) / kGroup, groups = a.rows * of_row;
  format::Nvfp4Global global;
  if constexpr (kFormat == Format::nvfp4) {
    const float scale = format::nvfp4_global_scale(format::amax_value(a.amax[blockIdx.y]));
    global = format::nvfp4_global(scale);
    if (blockIdx.x == 0 && threadIdx.x == 0) a.global[blockIdx.y] = scale;
  }
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < groups;
       i += static_cast<int64_t>(gridDim.x) * kThreads) {
    const int64_t row = blockIdx.y * a.rows + i / of_row, first = i % of_row * kGroup;
    const bf16_t* w = a.w + row * a.cols + first;
    const int count = static_cast<int>(min(static_cast<int64_t>(kGroup), a.cols - first));
    float x[kGroup];
#pragma unroll
    for (int j = 0; j < kGroup; ++j) x[j] = j < count ? bf16_to_float(w[j]) : 0.0f;
    uint8_t codes[kGroup / kCodesOfByte];
    // A constant count unrolls the loops over values. What lies beyond a short group is zero and changes no scale.
    const uint8_t scale = quantize_group<kFormat>(x, kGroup, global, codes);
    static_cast<uint8_t*>(a.scales)[blockIdx.y * groups + i] = scale;
    uint8_t* to = a.codes + (row * a.cols + first) / kCodesOfByte;
    const int bytes = count / kCodesOfByte;
#pragma unroll
    for (int j = 0; j < kGroup / kCodesOfByte; ++j)
      if (j < bytes) to[j] = codes[j];
  }
}

template <class Kernel>
void launch_parts(Kernel kernel, const QuantizeWeightsArgs& a, int64_t items, Stream stream) {
  const int64_t blocks = std::clamp<int64_t>(ceil_div<int64_t>(items, kThreads), 1, kMaxBlocks);
  launch(kernel, dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(a.experts)), kThreads, 0, stream, false, a);
}

}  // namespace

void launch_quantize_weights(const QuantizeWeightsArgs& a, Stream stream) {
  const int64_t size = a.rows * a.cols;
  if (a.experts == 0 || size == 0) return;
  const auto groups = [&](int64_t group) { return a.rows * ceil_div(a.cols, group); };
  switch (a.format) {
    case Format::bf16:
      return;
    case Format::fp8_tensor:
      launch_parts(matrix_amax_kernel, a, size, stream);
      return launch_parts(tensor_codes_kernel, a, size, stream);
    case Format::fp8_channel:
      return launch(channel_kernel, dim3(static_cast<unsigned>(a.experts * a.rows)), kThreads, 0, stream, false, a);
    case Format::fp8_block: {
      const dim3 blocks(static_cast<unsigned>(ceil_div<int64_t>(a.cols, kBlock)),
                        static_cast<unsigned>(ceil_div<int64_t>(a.rows, kBlock)), static_cast<unsigned>(a.experts));
      return launch(block_kernel, blocks, kThreads, 0, stream, false, a);
    }
    case Format::mxfp8:
      return launch_parts(groups_kernel<Format::mxfp8>, a, groups(32), stream);
    case Format::mxfp4:
      return launch_parts(groups_kernel<Format::mxfp4>, a, groups(32), stream);
    case Format::nvfp4:
      launch_parts(matrix_amax_kernel, a, size, stream);
      return launch_parts(groups_kernel<Format::nvfp4>, a, groups(16), stream);
  }
}

}  // namespace sluice::sm90
