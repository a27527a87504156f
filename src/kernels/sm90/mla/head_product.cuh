// SPDX-License-Identifier: Apache-2.0
// Tiles of rows and columns of a head's product: x and the weights come to shared memory in steps of 64 values of k by
// cp.async; mma.sync m16n8k16 multiplies. Weights are no kernel's result, so that they are under way before the kernel
// ahead has finished: all of them where they are resident, else as many as there are stages.
#pragma once

#include "base/math.h"
#include "kernels/ptx/bf16x2.cuh"
#include "kernels/ptx/cp_async.cuh"
#include "kernels/ptx/mbarrier.cuh"
#include "kernels/ptx/mma.cuh"
#include "kernels/ptx/sync.cuh"
#include "kernels/sm90/mla/head_product.h"

namespace sluice::sm90 {

inline constexpr int kHeadStep = 64;  // of k

// kDown x kAcross warps share a tile of kRows x kColumns.
template <int kRows_, int kColumns_, int kDown, int kAcross_, int kStages_, bool kResident_>
struct HeadTileOf {
  static constexpr int kRows = kRows_, kColumns = kColumns_, kStages = kStages_, kAcross = kAcross_;
  static constexpr bool kResident = kResident_;  // all weights of a tile have a place of their own
  static constexpr int kThreads = 32 * kDown * kAcross;
  static constexpr int kWarpRows = kRows / kDown, kWarpColumns = kColumns / kAcross;
  static constexpr int kXBytes = kRows * kHeadStep * 2, kWeightBytes = kColumns * kHeadStep * 2;
  static constexpr int kStageBytes = kXBytes + (kResident ? 0 : kWeightBytes);
  // The result on its way out. The rows' stride makes eight of them meet no bank twice.
  static constexpr int kOutStride = 2 * kColumns + 16, kOutBytes = kRows * kOutStride;
  static_assert(kWarpRows % 16 == 0 && kWarpColumns % 16 == 0);

  // Shared memory: stages, then resident weights, then the result; or the result where the stages were.
  HD static constexpr int weights_at() { return kStages * kStageBytes; }
  HD static constexpr int out_at(int steps) { return kResident ? weights_at() + steps * kWeightBytes : 0; }
  static constexpr int shared_bytes(int k) {
    const int steps = ceil_div(k, kHeadStep), stages = steps < kStages ? steps : kStages;
    if (kResident) return out_at(steps) + kOutBytes;
    return stages * kStageBytes > kOutBytes ? stages * kStageBytes : kOutBytes;
  }
};

// Piece p (8 values) of row r where rows have `pieces` pieces, a multiple of 8: eight rows' same piece in eight places.
__device__ __forceinline__ int head_piece(int r, int p, int pieces) { return (r * pieces + (p ^ (r & 7))) * 16; }

// Row `row` of the product in x; null: zeros.
__device__ __forceinline__ const bf16_t* head_x_row(const HeadProductArgs& a, int64_t row, int head) {
  if (row >= a.rows) return nullptr;
  const int64_t from = a.x_rows != nullptr ? a.x_rows[row] : row;
  return static_cast<const bf16_t*>(a.x) + from * a.x_stride + head * a.x_head;
}

// Row `row` of the product in y; null: none.
__device__ __forceinline__ bf16_t* head_y_row(const HeadProductArgs& a, int64_t row, int head) {
  if (row >= a.rows) return nullptr;
  const int64_t to = a.y_rows != nullptr ? a.y_rows[row] : row;
  return static_cast<bf16_t*>(a.y) + to * a.y_stride + head * a.y_head;
}

// Loads of x, which run ahead of the products: their own tile, step and stage.
template <class Tile>
class HeadLoads {
  static constexpr int kPieces = kHeadStep / 8, kRowsAtOnce = Tile::kThreads / kPieces;
  static constexpr int kLoads = ceil_div(Tile::kRows, kRowsAtOnce);

 public:
  __device__ HeadLoads(const HeadProductArgs& a, uint32_t smem, int head, int steps, int tiles)
      : a_(a), smem_(smem), head_(head), steps_(steps), tiles_(tiles) {}
  __device__ __forceinline__ void next() {
    const int thread = static_cast<int>(threadIdx.x);
    if (tile_ < tiles_) {
      if (step_ == 0) {
        const int64_t row = static_cast<int64_t>(tile_) * Tile::kRows;
#pragma unroll
        for (int i = 0; i < kLoads; ++i) {
          const int r = i * kRowsAtOnce + thread / kPieces;
          x_[i] = r < Tile::kRows ? head_x_row(a_, row + r, head_) : nullptr;
        }
      }
      const uint32_t to = smem_ + stage_ * Tile::kStageBytes;
      const int p = thread % kPieces, k = step_ * kHeadStep + 8 * p;
#pragma unroll
      for (int i = 0; i < kLoads; ++i) {
        const int r = i * kRowsAtOnce + thread / kPieces;
        const bool valid = x_[i] != nullptr && k < a_.k;
        if (r < Tile::kRows) ptx::cp_async_16(to + head_piece(r, p, kPieces), valid ? x_[i] + k : a_.weight, valid);
      }
      if (++step_ == steps_) step_ = 0, tile_ += static_cast<int>(gridDim.z);
      if (++stage_ == Tile::kStages) stage_ = 0;
    }
    ptx::cp_async_commit();
  }

 private:
  const HeadProductArgs& a_;
  uint32_t smem_;
  int head_, steps_, tiles_;
  const bf16_t* x_[kLoads];
  int tile_ = static_cast<int>(blockIdx.z), step_ = 0, stage_ = 0;
};

// A warp's part of a tile of results, and where it begins.
template <class Tile>
using HeadSums = float[Tile::kWarpRows / 16][Tile::kWarpColumns / 8][4];
template <class Tile>
__device__ __forceinline__ int first_row_of_warp() {
  return (static_cast<int>(threadIdx.x) >> 5) / Tile::kAcross * Tile::kWarpRows;
}
template <class Tile>
__device__ __forceinline__ int first_column_of_warp() {
  return (static_cast<int>(threadIdx.x) >> 5) % Tile::kAcross * Tile::kWarpColumns;
}

// The products of a step. xs, ws: its rows and weights in shared memory.
template <class Tile, bool kByK>
__device__ __forceinline__ void multiply_step(uint32_t xs, uint32_t ws, HeadSums<Tile>& sums) {
  constexpr int kPieces = kHeadStep / 8, kM = Tile::kWarpRows / 16, kN = Tile::kWarpColumns / 8;
  const int lane = static_cast<int>(threadIdx.x) & 31;
  const int warp_row = first_row_of_warp<Tile>(), warp_column = first_column_of_warp<Tile>();
#pragma unroll
  for (int k = 0; k < kHeadStep / 16; ++k) {
    uint32_t left[kM][4];
#pragma unroll
    for (int m = 0; m < kM; ++m)
      ptx::ldmatrix_x4(left[m], xs + head_piece(warp_row + 16 * m + (lane & 15), 2 * k + lane / 16, kPieces));
#pragma unroll
    for (int n = 0; n < kN; n += 2) {
      uint32_t b[4];
      const int column = warp_column + 8 * n;
      if constexpr (kByK)
        ptx::ldmatrix_x4_trans(b, ws + head_piece(16 * k + (lane & 15), column / 8 + lane / 16, Tile::kColumns / 8));
      else
        ptx::ldmatrix_x4(b, ws + head_piece(column + (lane & 7) + lane / 16 * 8, 2 * k + (lane / 8 & 1), kPieces));
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        ptx::mma_m16n8k16_bf16(sums[m][n], left[m], b[0], b[1]);
        ptx::mma_m16n8k16_bf16(sums[m][n + 1], left[m], b[2], b[3]);
      }
    }
  }
}

// A tile's results. They go through `exchanged`, so that threads write 16 neighbouring bytes.
template <class Tile>
__device__ __forceinline__ void store_results(const HeadProductArgs& a, const HeadSums<Tile>& sums, uint8_t* exchanged,
                                              int64_t first_row, int first_column, int head) {
  const int thread = static_cast<int>(threadIdx.x), lane = thread & 31;
  const int warp_row = first_row_of_warp<Tile>(), warp_column = first_column_of_warp<Tile>();
#pragma unroll
  for (int m = 0; m < Tile::kWarpRows / 16; ++m)
#pragma unroll
    for (int n = 0; n < Tile::kWarpColumns / 8; ++n)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int r = warp_row + 16 * m + lane / 4 + 8 * h, column = warp_column + 8 * n + 2 * (lane % 4);
        *reinterpret_cast<uint32_t*>(exchanged + r * Tile::kOutStride + 2 * column) =
            ptx::cvt_bf16x2_f32(sums[m][n][2 * h + 1], sums[m][n][2 * h]);
      }
  __syncthreads();
  constexpr int kAcross = Tile::kColumns / 8;
#pragma unroll 4
  for (int i = thread; i < Tile::kRows * kAcross; i += Tile::kThreads) {
    const int r = i / kAcross, column = first_column + i % kAcross * 8;
    bf16_t* to = head_y_row(a, first_row + r, head);
    if (to == nullptr || column >= a.n) continue;
    *reinterpret_cast<uint4*>(to + column) =
        *reinterpret_cast<const uint4*>(exchanged + r * Tile::kOutStride + i % kAcross * 16);
  }
}

// Grid: columns / kColumns x heads x tiles of rows, or as many blocks as there may be.
template <class Tile, bool kByK>
__global__ void __launch_bounds__(Tile::kThreads) head_product_kernel(const __grid_constant__ HeadProductArgs a) {
  constexpr int kPieces = kHeadStep / 8, kSteps = Tile::kColumns * kPieces / Tile::kThreads;
  extern __shared__ __align__(128) uint8_t head_smem[];
  ptx::griddepcontrol_launch_dependents();
  const int thread = static_cast<int>(threadIdx.x);
  const int first_column = static_cast<int>(blockIdx.x) * Tile::kColumns, head = static_cast<int>(blockIdx.y);
  const int steps = ceil_div(a.k, kHeadStep);
  const uint32_t smem = ptx::smem_address(head_smem);
  const auto* weight = static_cast<const bf16_t*>(a.weight) + head * a.weight_head;

  const auto load_weight = [&](int step, uint32_t to) {
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      const int at = i * Tile::kThreads + thread;
      constexpr int kAcross = kByK ? Tile::kColumns / 8 : kPieces;
      const int r = at / kAcross, p = at % kAcross;
      const int k = step * kHeadStep + (kByK ? r : 8 * p), column = first_column + (kByK ? 8 * p : r);
      const bool valid = k < a.k && column < a.n;
      const bf16_t* from = weight + (kByK ? k * a.weight_stride + column : column * a.weight_stride + k);
      ptx::cp_async_16(to + head_piece(r, p, kAcross), valid ? from : weight, valid);
    }
  };
  if constexpr (Tile::kResident)
    for (int i = 0; i < steps; ++i) load_weight(i, smem + Tile::weights_at() + i * Tile::kWeightBytes);
  else
    for (int i = 0; i + 1 < Tile::kStages && i < steps; ++i)
      load_weight(i, smem + i * Tile::kStageBytes + Tile::kXBytes);
  ptx::griddepcontrol_wait();

  const int tiles = static_cast<int>(ceil_div<int64_t>(a.rows, Tile::kRows));
  const int first_tile = static_cast<int>(blockIdx.z), stride = static_cast<int>(gridDim.z);
  HeadLoads<Tile> loads(a, smem, head, steps, tiles);
  for (int i = 0; i + 1 < Tile::kStages; ++i) loads.next();

  int stage = 0;
  for (int tile = first_tile; tile < tiles; tile += stride) {
    const int64_t first_row = static_cast<int64_t>(tile) * Tile::kRows;
    // The blocks of a row tile share what is copied beside the product, most often one piece for each thread, which
    // comes in while it waits for x.
    const int copies = a.copied / 8, across = static_cast<int>(gridDim.x);
    const int pieces = ceil_div(Tile::kRows * copies - static_cast<int>(blockIdx.x), across);
    const auto copied = [&](int i) {
      const int at = i * across + static_cast<int>(blockIdx.x);
      const int64_t row = first_row + at / copies;
      const bf16_t* from = head_x_row(a, row, head);
      return from != nullptr ? *reinterpret_cast<const uint4*>(from + a.copy_from + at % copies * 8) : uint4{};
    };
    const auto store_copied = [&](int i, const uint4& v) {
      const int at = i * across + static_cast<int>(blockIdx.x);
      bf16_t* to = head_y_row(a, first_row + at / copies, head);
      if (to != nullptr) *reinterpret_cast<uint4*>(to + a.copy_to + at % copies * 8) = v;
    };
    const uint4 own = copies > 0 && thread < pieces ? copied(thread) : uint4{};

    HeadSums<Tile> sums = {};
    for (int step = 0; step < steps; ++step) {
      ptx::cp_async_wait<Tile::kStages - 2>();
      __syncthreads();
      if constexpr (!Tile::kResident) {
        const int ahead = step + Tile::kStages - 1;
        if (ahead < steps) load_weight(ahead, smem + ahead % Tile::kStages * Tile::kStageBytes + Tile::kXBytes);
      }
      loads.next();
      const uint32_t xs = smem + stage * Tile::kStageBytes;
      const uint32_t ws = Tile::kResident ? smem + Tile::weights_at() + step * Tile::kWeightBytes : xs + Tile::kXBytes;
      if (++stage == Tile::kStages) stage = 0;
      multiply_step<Tile, kByK>(xs, ws, sums);
    }
    if constexpr (!Tile::kResident) __syncthreads();  // the result takes the stages' place

    store_results<Tile>(a, sums, head_smem + Tile::out_at(steps), first_row, first_column, head);
    if (copies == 0) continue;
    if (thread < pieces) store_copied(thread, own);
    for (int i = thread + Tile::kThreads; i < pieces; i += Tile::kThreads) store_copied(i, copied(i));
  }
  ptx::cp_async_wait<0>();
}

}  // namespace sluice::sm90
