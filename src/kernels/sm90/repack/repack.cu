// SPDX-License-Identifier: Apache-2.0
#include "kernels/ptx/sync.cuh"
#include "kernels/sm90/launch.cuh"
#include "kernels/sm90/repack/canonical_row.cuh"
#include "kernels/sm90/repack/packed.h"

namespace sluice::sm90 {

namespace {

constexpr int kThreads = kRepackThreads;

__global__ void __launch_bounds__(kThreads) block_scale_kernel(const __grid_constant__ RepackArgs a) {
  ptx::griddepcontrol_launch_dependents();
  ptx::griddepcontrol_wait();
  const int64_t total = a.shape.block_scales() / 4;
  const int runs = scale_runs(a.shape.operand, a.shape.k_blocks()), m_tiles = a.shape.m_tiles();
  const int64_t blocks_n = ceil_div<int64_t>(a.shape.rows, 128);
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < total;
       i += static_cast<int64_t>(gridDim.x) * kThreads) {
    const int run = static_cast<int>(i % runs);
    const int64_t tile = i / runs, expert = tile / m_tiles;
    const int64_t block = tile % m_tiles * (a.shape.gated ? 64 : 128) / 128;
    float up = 0.0f, gate = 0.0f;
    if (block < blocks_n) {
      const int64_t at = (expert * blocks_n + block) * runs + run;
      up = static_cast<const float*>(a.up.scales)[at];
      gate = a.shape.gated ? static_cast<const float*>(a.gate.scales)[at] : up;
    }
    reinterpret_cast<float4*>(a.block_scale)[i] = {up, gate, 0.0f, 0.0f};
  }
}

constexpr int kKBlocksPerBlock = 2;  // 1 or 4: 1 to 3 % slower

// BF16 and FP8: neighbouring k-blocks of 128 rows by one block of threads. Grid: such parts, M-tiles, experts. kWide:
// rows are multiples of 16 bytes.
template <bool kWide>
__global__ void __launch_bounds__(kThreads) k_block_kernel(const __grid_constant__ RepackArgs a) {
  ptx::griddepcontrol_launch_dependents();
  const WeightShape& shape = a.shape;
  const int k_blocks = shape.k_blocks(), m_tile = static_cast<int>(blockIdx.y);
  const int64_t expert = blockIdx.z;
  const int row_bytes = static_cast<int>(shape.k) * (shape.operand == WeightOperand::bf16 ? 2 : 1);
  constexpr int kPieces = 1024 * kKBlocksPerBlock / kThreads, kRowPieces = 8 * kKBlocksPerBlock;
  const int piece = static_cast<int>(blockIdx.x) * kRowPieces + static_cast<int>(threadIdx.x) % kRowPieces;
  const auto row = [](int i) { return static_cast<int>(threadIdx.x) / kRowPieces + i * (kThreads / kRowPieces); };
  uint4 v[kPieces];
#pragma unroll
  for (int i = 0; i < kPieces; ++i) {
    const CanonicalRow s = canonical_row(a, expert, m_tile, row(i));
    const uint8_t* from = static_cast<const uint8_t*>(s.stack->codes) + s.row * row_bytes;
    v[i] = uint4{};
    if constexpr (kWide) {
      if (s.row >= 0 && piece * 16 < row_bytes) v[i] = __ldg(reinterpret_cast<const uint4*>(from + piece * 16));
    } else {
      if (s.row >= 0) v[i] = row_bytes16(from, piece * 16, row_bytes);
    }
  }
  ptx::griddepcontrol_wait();
  if (blockIdx.x == 0 && a.row_scale != nullptr) write_row_scales(a, expert, m_tile);
  if (piece / 8 >= k_blocks) return;
  uint8_t* out = a.weights + ((expert * gridDim.y + m_tile) * k_blocks + piece / 8) * k_block_bytes(shape.operand);
#pragma unroll
  for (int i = 0; i < kPieces; ++i)
    *reinterpret_cast<uint4*>(out + (row(i) / 64) * 8192 + swizzled(row(i) % 64, piece % 8)) = v[i];
}

}  // namespace

void launch_repack(const RepackArgs& args, Stream stream, bool pdl) {
  const WeightShape& s = args.shape;
  if (s.experts == 0) return;
  if (args.block_scale != nullptr) {
    launch(block_scale_kernel, static_cast<int>(ceil_div<int64_t>(s.block_scales() / 4, kThreads)), kThreads, 0, stream,
           pdl, args);
    pdl = true;
  }
  if (decodes(s.operand)) return launch_packed(args, stream, pdl);
  const dim3 grid(static_cast<unsigned>(ceil_div(s.k_blocks(), kKBlocksPerBlock)), static_cast<unsigned>(s.m_tiles()),
                  static_cast<unsigned>(s.experts));
  const bool wide = s.k * (s.operand == WeightOperand::bf16 ? 2 : 1) % 16 == 0;
  launch(wide ? k_block_kernel<true> : k_block_kernel<false>, grid, kThreads, 0, stream, pdl, args);
}

}  // namespace sluice::sm90
