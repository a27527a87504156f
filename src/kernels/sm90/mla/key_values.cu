// SPDX-License-Identifier: Apache-2.0
#include "kernels/sm90/mla/key_values.h"

#include <algorithm>

#include "base/bf16.h"
#include "base/math.h"
#include "kernels/ptx/bf16x2.cuh"
#include "kernels/ptx/copy.cuh"
#include "kernels/ptx/cp_async.cuh"
#include "kernels/ptx/sync.cuh"
#include "kernels/ptx/wgmma.cuh"
#include "kernels/ptx/wgmma_sync.cuh"
#include "kernels/sm90/launch.cuh"

namespace sluice::sm90 {

namespace {

// A block keeps the weights of a head's keys or values (128 KB) and takes one tile of positions after another: each
// warpgroup half of its rows.
constexpr int kThreads = 256, kRows = kExpandedTile, kColumns = 128, kStep = 64, kSteps = kLatent / kStep;
constexpr int kStages = 4, kAhead = kStages - 2;  // a stage is free once the products of the step after it have begun
constexpr int kNope = kExpandedKey - kLatentRope;
static_assert(kNope == kColumns && kExpandedValue == kColumns && kRows == 128);
constexpr int kTileBytes = kRows * kStep * 2, kWeightsAt = kStages * kTileBytes;
constexpr int kOutAt = kWeightsAt + kSteps * kColumns * kStep * 2;
constexpr int kOutStride = 2 * kColumns + 16;  // eight rows meet no bank twice
constexpr int kSharedBytes = kOutAt + kRows * kOutStride;
static_assert(kSharedBytes <= 227 * 1024);
constexpr int kPieces = kStep / 8, kRowsAtOnce = kThreads / kPieces, kLoads = kRows / kRowsAtOnce;

// Piece p of row r in the 128-byte swizzle of wgmma_sync.cuh.
__device__ __forceinline__ int swizzled(int r, int p) { return (r * kPieces + (p ^ (r & 7))) * 16; }

// Latent row `row` of `out`; null: zeros.
__device__ __forceinline__ const bf16_t* latent_row(const KeyValueArgs& a, int sequence, int row) {
  const int position = row - a.first[sequence];
  if (position >= a.lengths[sequence]) return nullptr;
  const int64_t block = a.blocks[a.block_begin[sequence] + position / a.block_size];
  return static_cast<const bf16_t*>(a.pages) + (block * a.block_size + position % a.block_size) * kLatentCached;
}
__device__ __forceinline__ int sequence_of(const KeyValueArgs& a, int row) {
  int low = 0, high = a.sequences;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (a.first[middle] <= row ? low : high) = middle;
  }
  return low;
}

// Grid: keys and values x heads x blocks that share the tiles of positions.
__global__ void __launch_bounds__(kThreads) key_values_kernel(const __grid_constant__ KeyValueArgs a) {
  extern __shared__ __align__(1024) uint8_t key_values_smem[];
  ptx::griddepcontrol_launch_dependents();
  const int thread = static_cast<int>(threadIdx.x), lane = thread & 31, warp = thread >> 5, piece = thread % kPieces;
  const bool values = blockIdx.x == 1;
  const int head = static_cast<int>(blockIdx.y);
  const uint32_t smem = ptx::smem_address(key_values_smem);
  const auto* weight =
      static_cast<const bf16_t*>(a.weight) + (int64_t{head} * 2 + (values ? 1 : 0)) * kColumns * kLatent;
  for (int step = 0; step < kSteps; ++step)
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int r = i * kRowsAtOnce + thread / kPieces;
      ptx::cp_async_16(smem + kWeightsAt + step * kTileBytes + swizzled(r, piece),
                       weight + r * kLatent + step * kStep + 8 * piece, true);
    }
  ptx::griddepcontrol_wait();

  const int tiles = a.first[a.sequences] / kRows, stride = static_cast<int>(gridDim.z);
  // Loads run ahead of the products: their own tile, step and stage.
  const bf16_t* x[kLoads];
  int next_tile = static_cast<int>(blockIdx.z), next_step = 0, next_stage = 0;
  const auto load_next = [&] {
    if (next_tile < tiles) {
      if (next_step == 0) {
        const int sequence = sequence_of(a, next_tile * kRows);
#pragma unroll
        for (int i = 0; i < kLoads; ++i)
          x[i] = latent_row(a, sequence, next_tile * kRows + i * kRowsAtOnce + thread / kPieces);
      }
      const uint32_t to = smem + next_stage * kTileBytes;
#pragma unroll
      for (int i = 0; i < kLoads; ++i)
        ptx::cp_async_16(to + swizzled(i * kRowsAtOnce + thread / kPieces, piece),
                         x[i] != nullptr ? x[i] + next_step * kStep + 8 * piece : weight, x[i] != nullptr);
      if (++next_step == kSteps) next_step = 0, next_tile += stride;
      next_stage = (next_stage + 1) % kStages;
    }
    ptx::cp_async_commit();
  };
#pragma unroll 1
  for (int i = 0; i < kAhead; ++i) load_next();

  auto* out = static_cast<bf16_t*>(a.out) + head * a.rows * kExpandedRow + (values ? kExpandedKey : 0);
  int stage = 0;
  for (int tile = static_cast<int>(blockIdx.z); tile < tiles; tile += stride) {
    float sums[kColumns / 2];
#pragma unroll
    for (float& v : sums) v = 0.0f;
#pragma unroll 1
    for (int step = 0; step < kSteps; ++step) {
      ptx::cp_async_wait<kAhead - 1>();
      ptx::fence_proxy_async();
      __syncthreads();
      const uint32_t rows = ptx::swizzled_desc_low(smem + stage * kTileBytes + warp / 4 * (kTileBytes / 2));
      const uint32_t columns = ptx::swizzled_desc_low(smem + kWeightsAt + step * kTileBytes);
      stage = (stage + 1) % kStages;
#pragma unroll
      for (float& v : sums) ptx::pin(v);
      ptx::wgmma_fence();
#pragma unroll
      for (int k = 0; k < kStep / 16; ++k)
        ptx::Wgmma<kColumns>::bf16_ss(sums, ptx::swizzled_desc(rows + 2 * k), ptx::swizzled_desc(columns + 2 * k), 1);
      ptx::wgmma_commit();
      ptx::wgmma_wait<1>();
      load_next();
    }
    ptx::wgmma_wait<0>();
#pragma unroll
    for (float& v : sums) ptx::pin(v);

      // Through shared memory, so that threads write 16 neighbouring bytes.
#pragma unroll
    for (int n = 0; n < kColumns / 8; ++n)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int r = 16 * warp + lane / 4 + 8 * h, column = 8 * n + 2 * (lane % 4);
        *reinterpret_cast<uint32_t*>(key_values_smem + kOutAt + r * kOutStride + 2 * column) =
            ptx::cvt_bf16x2_f32(sums[4 * n + 2 * h + 1], sums[4 * n + 2 * h]);
      }
    __syncthreads();
    bf16_t* const to = out + static_cast<int64_t>(tile) * kRows * kExpandedRow;
#pragma unroll
    for (int i = 0; i < kRows * kColumns / 8 / kThreads; ++i) {
      const int at = i * kThreads + thread, r = at / (kColumns / 8), p = at % (kColumns / 8);
      *reinterpret_cast<uint4*>(to + r * kExpandedRow + 8 * p) =
          *reinterpret_cast<const uint4*>(key_values_smem + kOutAt + r * kOutStride + 16 * p);
    }
    if (values) continue;
    const int sequence = sequence_of(a, tile * kRows);
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int r = i * kRowsAtOnce + thread / kPieces;
      const bf16_t* from = latent_row(a, sequence, tile * kRows + r);
      *reinterpret_cast<uint4*>(to + r * kExpandedRow + kNope + 8 * piece) =
          from != nullptr ? *reinterpret_cast<const uint4*>(from + kLatent + 8 * piece) : uint4{};
    }
  }
  ptx::cp_async_wait<0>();
}

}  // namespace

void launch_key_values(const KeyValueArgs& a, int multiprocessors, Stream stream, bool pdl) {
  if (a.rows == 0) return;
  const int64_t shared = std::min<int64_t>(a.rows / kRows, std::max(1, multiprocessors / (2 * a.heads)));
  launch(key_values_kernel, dim3(2, static_cast<unsigned>(a.heads), static_cast<unsigned>(shared)), kThreads,
         kSharedBytes, stream, pdl, a);
}

void allow_key_values() { allow_shared_memory(key_values_kernel, kSharedBytes); }

}  // namespace sluice::sm90
