// SPDX-License-Identifier: Apache-2.0
#include "format/quantize.h"
#include "kernels/sm90/grouped_gemm/operand.cuh"
#include "kernels/sm90/launch.cuh"
#include "kernels/sm90/prepare/prepare.h"

namespace sluice::sm90 {

namespace {

constexpr int kThreads = 256;

// The canonical row behind row r of a row tile; row < 0: padding.
struct Source {
  const CanonicalStack* stack;
  int64_t row;  // [experts * rows]
};
__device__ inline Source source_of(const PrepareArgs& a, int64_t expert, int row_tile, int r) {
  const bool gate = a.shape.gated && is_gate(r);
  const int64_t row = a.shape.gated ? static_cast<int64_t>(row_tile) * 64 + gated_column(r)
                                    : static_cast<int64_t>(row_tile) * kTileRows + r;
  return {gate ? &a.gate : &a.up, row < a.shape.rows ? expert * a.shape.rows + row : -1};
}

// Decode factor of the row's block scales: MX operands keep scales relative to the row's largest.
__device__ inline uint8_t largest_scale(const PrepareArgs& a, const Source& s) {
  const int64_t groups = ceil_div<int64_t>(a.shape.k, 32);
  const auto* scales = static_cast<const uint8_t*>(s.stack->scales) + s.row * groups;
  uint8_t largest = 0;
  for (int64_t i = 0; i < groups; ++i) largest = scales[i] > largest ? scales[i] : largest;
  return largest;
}

__global__ void __launch_bounds__(kThreads) row_scale_kernel(const __grid_constant__ PrepareArgs a) {
  const int64_t total = a.shape.row_scales();
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < total;
       i += static_cast<int64_t>(gridDim.x) * kThreads) {
    const int r = static_cast<int>(i % kTileRows);
    const int64_t tile = i / kTileRows, expert = tile / a.shape.row_tiles();
    const Source s = source_of(a, expert, static_cast<int>(tile % a.shape.row_tiles()), r);
    float scale = 1.0f;
    if (s.row >= 0) {
      switch (a.format) {
        case format::Format::fp8_tensor:
          scale = static_cast<const float*>(s.stack->scales)[expert];
          break;
        case format::Format::fp8_channel:
          scale = static_cast<const float*>(s.stack->scales)[s.row];
          break;
        case format::Format::nvfp4:
          scale = s.stack->global[expert] * 256.0f;
          break;
        case format::Format::mxfp8:
        case format::Format::mxfp4:
          scale = format::e8m0_to_float(largest_scale(a, s));
          break;
        default:
          break;
      }
    }
    a.row_scale[i] = scale;
  }
}

__global__ void __launch_bounds__(kThreads) block_scale_kernel(const __grid_constant__ PrepareArgs a) {
  const int64_t total = a.shape.block_scales() / 4;
  const int slabs = a.shape.slabs(), row_tiles = a.shape.row_tiles();
  const int64_t blocks_n = ceil_div<int64_t>(a.shape.rows, 128);
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < total;
       i += static_cast<int64_t>(gridDim.x) * kThreads) {
    const int slab = static_cast<int>(i % slabs);
    const int64_t tile = i / slabs, expert = tile / row_tiles;
    const int64_t block = tile % row_tiles * (a.shape.gated ? 64 : 128) / 128;
    float up = 0.0f, gate = 0.0f;
    if (block < blocks_n) {
      const int64_t at = (expert * blocks_n + block) * slabs + slab;
      up = static_cast<const float*>(a.up.scales)[at];
      gate = a.shape.gated ? static_cast<const float*>(a.gate.scales)[at] : up;
    }
    reinterpret_cast<float4*>(a.block_scale)[i] = {up, gate, 0.0f, 0.0f};
  }
}

// 16 bytes of a row from byte `at`, zero beyond its end.
__device__ inline uint4 row_bytes16(const void* base, int64_t row, int64_t row_bytes, int64_t at) {
  const uint8_t* p = static_cast<const uint8_t*>(base) + row * row_bytes + at;
  if (at + 16 <= row_bytes && row_bytes % 16 == 0) return *reinterpret_cast<const uint4*>(p);
  uint32_t w[4] = {};
  for (int i = 0; i < 16; ++i)
    if (at + i < row_bytes) w[i / 4] |= static_cast<uint32_t>(p[i]) << (8 * (i % 4));
  return {w[0], w[1], w[2], w[3]};
}

// e4m3 >= 0 with 5 exponent bits, so that small scales are normal numbers; exact. 0 keeps its byte, its codes are
// zeroed.
__device__ inline uint32_t wide_scale(uint32_t e4m3) {
  e4m3 &= 0x7fu;
  if (e4m3 == 0) return 0;
  if (e4m3 >= 8) return e4m3 + (3u << 3);               // bias 7 -> 10
  const int shift = e4m3 >= 4 ? 1 : e4m3 >= 2 ? 2 : 3;  // m * 2^-9 = 1.f * 2^(-6 - shift)
  return static_cast<uint32_t>(4 - shift) << 3 | ((e4m3 << shift) & 7u);
}

// One slab of 128 rows by one block of threads.
__global__ void __launch_bounds__(kThreads) slab_kernel(const __grid_constant__ PrepareArgs a) {
  const WeightShape& shape = a.shape;
  const int slabs = shape.slabs(), row_tiles = shape.row_tiles();
  const Operand op = shape.operand;
  const int64_t index = blockIdx.x;
  const int slab = static_cast<int>(index % slabs);
  const int row_tile = static_cast<int>(index / slabs % row_tiles);
  const int64_t expert = index / slabs / row_tiles;
  uint8_t* out = a.weights + index * slab_bytes(op);

  if (op == Operand::bf16 || is_fp8(op)) {
    const int64_t bytes = shape.k * (op == Operand::bf16 ? 2 : 1);
    for (int i = threadIdx.x; i < 1024; i += kThreads) {
      const int r = i / 8, piece = i % 8;
      const Source s = source_of(a, expert, row_tile, r);
      uint4 v{};
      if (s.row >= 0) v = row_bytes16(s.stack->codes, s.row, bytes, static_cast<int64_t>(slab) * 128 + piece * 16);
      *reinterpret_cast<uint4*>(out + (r / 64) * 8192 + swizzled(r % 64, piece)) = v;
    }
    return;
  }

  // Through shared memory: rows come in wide, fragments leave wide.
  __shared__ uint4 codes[128][5];  // 64 or 32 bytes of a row, padded
  __shared__ __align__(4) uint8_t scales[128][4];
  const bool fp8 = op == Operand::mxfp8;
  const int pieces = fp8 ? 4 : 2;
  const int64_t bytes = fp8 ? shape.k : shape.k / 2;
  for (int i = threadIdx.x; i < 128 * pieces; i += kThreads) {
    const int r = i / pieces, piece = i % pieces;
    const Source s = source_of(a, expert, row_tile, r);
    codes[r][piece] =
        s.row < 0 ? uint4{}
                  : row_bytes16(s.stack->codes, s.row, bytes, static_cast<int64_t>(slab) * pieces * 16 + piece * 16);
  }
  const int group = op == Operand::nvfp4 ? 16 : 32, groups = 64 / group;
  const int64_t row_groups = ceil_div<int64_t>(shape.k, group);
  if (threadIdx.x < 128) {
    const int r = static_cast<int>(threadIdx.x);
    const Source s = source_of(a, expert, row_tile, r);
    const int64_t first = static_cast<int64_t>(slab) * groups;
    uint32_t read = 0, word = 0;
    if (s.row >= 0) {
      const uint8_t* from = static_cast<const uint8_t*>(s.stack->scales) + s.row * row_groups + first;
      if (groups == 4 && row_groups % 4 == 0)
        read = *reinterpret_cast<const uint32_t*>(from);
      else
        for (int j = 0; j < groups && first + j < row_groups; ++j) read |= static_cast<uint32_t>(from[j]) << (8 * j);
    }
    // MX: the exponent field of the bf16 multiplier; row_scale carries the row's largest scale.
    const int largest =
        op == Operand::nvfp4
            ? 0
            : static_cast<int>(__float_as_uint(a.row_scale[(expert * row_tiles + row_tile) * kTileRows + r]) >> 23 &
                               255u);
    for (int j = 0; j < groups; ++j) {
      uint32_t byte = read >> (8 * j) & 255u;
      if (op == Operand::nvfp4) {
        byte = wide_scale(byte);
      } else {
        const int field = (fp8 ? 247 : 253) - (largest - static_cast<int>(byte));
        byte = byte == 0 || field < 1 ? 0 : static_cast<uint32_t>(field);
      }
      word |= byte << (8 * j);
    }
    *reinterpret_cast<uint32_t*>(scales[r]) = word;
    const int high = r / 8 % 2, fragment = r / 16 * 8 + r % 8;  // of 16 rows: row and row + 8 share a fragment
    uint8_t* to = out + slab_code_bytes(op) + (fragment * 2 + high) * groups;
    if (groups == 4)
      *reinterpret_cast<uint32_t*>(to) = word;
    else
      *reinterpret_cast<uint16_t*>(to) = static_cast<uint16_t>(word);
  }
  __syncthreads();
  const int wg = threadIdx.x / 128, t = threadIdx.x % 128;
  const int row0 = wg * 64 + t / 32 * 16 + t % 32 / 4, pair = t % 4;
  const auto byte_at = [&](int r, int at) {
    return static_cast<uint32_t>(reinterpret_cast<const uint8_t*>(codes[r])[at]);
  };
  uint32_t words[8];
  for (int s = 0; s < 4; ++s) {
    uint32_t w[2] = {0, 0};
    for (int reg = 0; reg < 4; ++reg) {
      const int r = row0 + 8 * (reg & 1), k = s * 16 + 8 * (reg >> 1) + 2 * pair;
      const bool zero = scales[r][fp8 || op == Operand::mxfp4 ? k / 32 : k / 16] == 0;
      if (zero) continue;
      if (fp8) {
        w[reg >> 1] |= place_e4m3(byte_at(r, k), reg, 0) | place_e4m3(byte_at(r, k + 1), reg, 1);
      } else {
        w[0] |= place_e2m1(byte_at(r, k / 2), reg);
      }
    }
    if (fp8)
      words[2 * s] = w[0], words[2 * s + 1] = w[1];
    else
      words[s] = w[0];
  }
  if (fp8) {
    *reinterpret_cast<uint4*>(out + wg * 4096 + t * 16) = {words[0], words[1], words[2], words[3]};
    *reinterpret_cast<uint4*>(out + wg * 4096 + 2048 + t * 16) = {words[4], words[5], words[6], words[7]};
  } else {
    *reinterpret_cast<uint4*>(out + wg * 2048 + t * 16) = {words[0], words[1], words[2], words[3]};
  }
}

}  // namespace

void launch_prepare(const PrepareArgs& args, Stream stream) {
  const WeightShape& s = args.shape;
  if (s.experts == 0) return;
  if (args.row_scale != nullptr)
    launch(row_scale_kernel, static_cast<int>(ceil_div<int64_t>(s.row_scales(), kThreads)), kThreads, 0, stream, false,
           args);
  if (args.block_scale != nullptr)
    launch(block_scale_kernel, static_cast<int>(ceil_div<int64_t>(s.block_scales() / 4, kThreads)), kThreads, 0, stream,
           false, args);
  launch(slab_kernel, static_cast<int>(s.experts * s.row_tiles() * s.slabs()), kThreads, 0, stream, false, args);
}

}  // namespace sluice::sm90
