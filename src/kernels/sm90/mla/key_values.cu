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

// A thread loads piece_of() of rows row_of(0), row_of(1), ... of a tile.
__device__ __forceinline__ int piece_of() { return static_cast<int>(threadIdx.x) % kPieces; }
__device__ __forceinline__ int row_of(int i) { return i * kRowsAtOnce + static_cast<int>(threadIdx.x) / kPieces; }

__device__ __forceinline__ void load_weights(const bf16_t* weight, uint32_t smem) {
  for (int step = 0; step < kSteps; ++step)
#pragma unroll
    for (int i = 0; i < kLoads; ++i)
      ptx::cp_async_16(smem + kWeightsAt + step * kTileBytes + swizzled(row_of(i), piece_of()),
                       weight + row_of(i) * kLatent + step * kStep + 8 * piece_of(), true);
}

// Loads of latent rows, which run ahead of the products: their own tile, step and stage.
class LatentLoads {
 public:
  // readable: any memory, for rows that do not exist.
  __device__ LatentLoads(const KeyValueArgs& a, int tiles, uint32_t smem, const bf16_t* readable)
      : a_(a), tiles_(tiles), smem_(smem), readable_(readable) {}
  __device__ __forceinline__ void next() {
    if (tile_ < tiles_) {
      if (step_ == 0) {
        const int sequence = sequence_of(a_, tile_ * kRows);
#pragma unroll
        for (int i = 0; i < kLoads; ++i) x_[i] = latent_row(a_, sequence, tile_ * kRows + row_of(i));
      }
      const uint32_t to = smem_ + stage_ * kTileBytes;
#pragma unroll
      for (int i = 0; i < kLoads; ++i)
        ptx::cp_async_16(to + swizzled(row_of(i), piece_of()),
                         x_[i] != nullptr ? x_[i] + step_ * kStep + 8 * piece_of() : readable_, x_[i] != nullptr);
      if (++step_ == kSteps) step_ = 0, tile_ += static_cast<int>(gridDim.z);
      stage_ = (stage_ + 1) % kStages;
    }
    ptx::cp_async_commit();
  }

 private:
  const KeyValueArgs& a_;
  int tiles_;
  uint32_t smem_;
  const bf16_t* readable_;
  const bf16_t* x_[kLoads];
  int tile_ = static_cast<int>(blockIdx.z), step_ = 0, stage_ = 0;
};

// The products of one step: half of the rows of a stage by all columns, for each warpgroup.
__device__ __forceinline__ void multiply_step(uint32_t stage, uint32_t weights, float (&sums)[kColumns / 2]) {
  const int warpgroup = static_cast<int>(threadIdx.x) >> 7;
  const uint32_t rows = ptx::swizzled_desc_low(stage + warpgroup * (kTileBytes / 2));
  const uint32_t columns = ptx::swizzled_desc_low(weights);
#pragma unroll
  for (float& v : sums) ptx::pin(v);
  ptx::wgmma_fence();
#pragma unroll
  for (int k = 0; k < kStep / 16; ++k)
    ptx::Wgmma<kColumns>::bf16_ss(sums, ptx::swizzled_desc(rows + 2 * k), ptx::swizzled_desc(columns + 2 * k), 1);
  ptx::wgmma_commit();
}

// A tile's results. They go through `exchanged`, so that threads write 16 neighbouring bytes.
__device__ __forceinline__ void store_tile(const float (&sums)[kColumns / 2], uint8_t* exchanged, bf16_t* to) {
  const int thread = static_cast<int>(threadIdx.x), lane = thread & 31, warp = thread >> 5;
#pragma unroll
  for (int n = 0; n < kColumns / 8; ++n)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int r = 16 * warp + lane / 4 + 8 * h, column = 8 * n + 2 * (lane % 4);
      *reinterpret_cast<uint32_t*>(exchanged + r * kOutStride + 2 * column) =
          ptx::cvt_bf16x2_f32(sums[4 * n + 2 * h + 1], sums[4 * n + 2 * h]);
    }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kRows * kColumns / 8 / kThreads; ++i) {
    const int at = i * kThreads + thread, r = at / (kColumns / 8), p = at % (kColumns / 8);
    *reinterpret_cast<uint4*>(to + r * kExpandedRow + 8 * p) =
        *reinterpret_cast<const uint4*>(exchanged + r * kOutStride + 16 * p);
  }
}

// The rotated part of the tile's keys, which all heads share.
__device__ __forceinline__ void copy_rotated(const KeyValueArgs& a, int tile, bf16_t* to) {
  const int sequence = sequence_of(a, tile * kRows);
#pragma unroll
  for (int i = 0; i < kLoads; ++i) {
    const bf16_t* from = latent_row(a, sequence, tile * kRows + row_of(i));
    *reinterpret_cast<uint4*>(to + row_of(i) * kExpandedRow + kNope + 8 * piece_of()) =
        from != nullptr ? *reinterpret_cast<const uint4*>(from + kLatent + 8 * piece_of()) : uint4{};
  }
}

// Grid: keys and values x heads x blocks that share the tiles of positions.
__global__ void __launch_bounds__(kThreads) key_values_kernel(const __grid_constant__ KeyValueArgs a) {
  extern __shared__ __align__(1024) uint8_t key_values_smem[];
  ptx::griddepcontrol_launch_dependents();
  const bool values = blockIdx.x == 1;
  const int head = static_cast<int>(blockIdx.y);
  const uint32_t smem = ptx::smem_address(key_values_smem);
  const auto* weight =
      static_cast<const bf16_t*>(a.weight) + (int64_t{head} * 2 + (values ? 1 : 0)) * kColumns * kLatent;
  load_weights(weight, smem);
  ptx::griddepcontrol_wait();

  const int tiles = a.first[a.sequences] / kRows;
  LatentLoads loads(a, tiles, smem, weight);
#pragma unroll 1
  for (int i = 0; i < kAhead; ++i) loads.next();

  auto* out = static_cast<bf16_t*>(a.out) + head * a.rows * kExpandedRow + (values ? kExpandedKey : 0);
  int stage = 0;
  for (int tile = static_cast<int>(blockIdx.z); tile < tiles; tile += static_cast<int>(gridDim.z)) {
    float sums[kColumns / 2];
#pragma unroll
    for (float& v : sums) v = 0.0f;
#pragma unroll 1
    for (int step = 0; step < kSteps; ++step) {
      ptx::cp_async_wait<kAhead - 1>();
      ptx::fence_proxy_async();
      __syncthreads();
      multiply_step(smem + stage * kTileBytes, smem + kWeightsAt + step * kTileBytes, sums);
      stage = (stage + 1) % kStages;
      ptx::wgmma_wait<1>();
      loads.next();
    }
    ptx::wgmma_wait<0>();
#pragma unroll
    for (float& v : sums) ptx::pin(v);

    bf16_t* const to = out + static_cast<int64_t>(tile) * kRows * kExpandedRow;
    store_tile(sums, key_values_smem + kOutAt, to);
    if (!values) copy_rotated(a, tile, to);
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
