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
  uint32_t largest = 0;  // of four bytes each
  int64_t i = 0;
  if (groups % 4 == 0) {
#pragma unroll 4
    for (; i < groups; i += 4) largest = __vmaxu4(largest, *reinterpret_cast<const uint32_t*>(scales + i));
    largest = max(max(largest & 255u, largest >> 8 & 255u), max(largest >> 16 & 255u, largest >> 24));
  }
  for (; i < groups; ++i) largest = max(largest, static_cast<uint32_t>(scales[i]));
  return static_cast<uint8_t>(largest);
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

// BF16 and FP8: one slab of 128 rows by one block of threads.
__global__ void __launch_bounds__(kThreads) slab_kernel(const __grid_constant__ PrepareArgs a) {
  const WeightShape& shape = a.shape;
  const int slabs = shape.slabs(), row_tiles = shape.row_tiles();
  const int64_t index = blockIdx.x;
  const int slab = static_cast<int>(index % slabs);
  const int row_tile = static_cast<int>(index / slabs % row_tiles);
  const int64_t expert = index / slabs / row_tiles;
  uint8_t* out = a.weights + index * slab_bytes(shape.operand);
  const int64_t bytes = shape.k * (shape.operand == Operand::bf16 ? 2 : 1);
  for (int i = threadIdx.x; i < 1024; i += kThreads) {
    const int r = i / 8, piece = i % 8;
    const Source s = source_of(a, expert, row_tile, r);
    uint4 v{};
    if (s.row >= 0) v = row_bytes16(s.stack->codes, s.row, bytes, static_cast<int64_t>(slab) * 128 + piece * 16);
    *reinterpret_cast<uint4*>(out + (r / 64) * 8192 + swizzled(r % 64, piece)) = v;
  }
}

// Scale bytes of one slab of a row, as the decoder wants them; byte j belongs to group j.
template <Operand op>
__device__ inline uint32_t slab_scales(const PrepareArgs& a, const Source& s, int slab, float row_scale) {
  constexpr int kGroup = op == Operand::nvfp4 ? 16 : 32, kGroups = 64 / kGroup;
  if (s.row < 0) return 0;
  const int64_t row_groups = ceil_div<int64_t>(a.shape.k, kGroup), first = static_cast<int64_t>(slab) * kGroups;
  const uint8_t* from = static_cast<const uint8_t*>(s.stack->scales) + s.row * row_groups + first;
  uint32_t read = 0, word = 0;
  if (kGroups == 4 && row_groups % 4 == 0 && first < row_groups)
    read = *reinterpret_cast<const uint32_t*>(from);
  else
    for (int j = 0; j < kGroups && first + j < row_groups; ++j) read |= static_cast<uint32_t>(from[j]) << (8 * j);
  // MX: the exponent field of the bf16 multiplier; row_scale carries the row's largest scale.
  const int largest = static_cast<int>(__float_as_uint(row_scale) >> 23 & 255u);
#pragma unroll
  for (int j = 0; j < kGroups; ++j) {
    uint32_t byte = read >> (8 * j) & 255u;
    if (op == Operand::nvfp4) {
      byte = wide_scale(byte);
    } else {
      const int field = (op == Operand::mxfp8 ? 247 : 253) - (largest - static_cast<int>(byte));
      byte = byte == 0 || field < 1 ? 0 : static_cast<uint32_t>(field);
    }
    word |= byte << (8 * j);
  }
  return word;
}

__device__ inline uint32_t word_of(const uint4& v, int i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; }

// 16 columns s of a thread's fragment, from 8 (e2m1) or 16 bytes (e4m3) of rows r and r + 8. `kept` has bit 0 and 1
// where the scale of the row is not zero.
__device__ inline uint32_t place_step_e2m1(uint2 low, uint2 high, int pair, uint32_t kept) {
  const auto two = [&](uint32_t word) { return word >> (8 * pair) & 0xffu; };
  uint32_t w = 0;
  if ((kept & 1) != 0) w |= place_e2m1(two(low.x), 0) | place_e2m1(two(low.y), 2);
  if ((kept & 2) != 0) w |= place_e2m1(two(high.x), 1) | place_e2m1(two(high.y), 3);
  return w;
}
__device__ inline uint2 place_step_e4m3(const uint4& low, const uint4& high, int pair, uint32_t kept) {
  const auto place = [&](const uint4& v, int half, int reg) {
    const uint32_t two = word_of(v, 2 * half + (pair >> 1)) >> (16 * (pair & 1));
    return place_e4m3(two & 0xffu, reg, 0) | place_e4m3(two >> 8 & 0xffu, reg, 1);
  };
  uint2 w{0, 0};
  if ((kept & 1) != 0) w.x |= place(low, 0, 0), w.y |= place(low, 1, 2);
  if ((kept & 2) != 0) w.x |= place(high, 0, 1), w.y |= place(high, 1, 3);
  return w;
}

// Packed operands: 128 bytes of each of 128 rows (four slabs of e2m1, two of e4m3) by one block of threads, through
// shared memory: rows come in wide, fragments leave wide.
template <Operand op>
__global__ void __launch_bounds__(kThreads) packed_kernel(const __grid_constant__ PrepareArgs a) {
  constexpr bool kFp8 = op == Operand::mxfp8;
  constexpr int kSlabs = kFp8 ? 2 : 4, kPieces = kFp8 ? 4 : 2;  // 16-byte pieces of a row in a slab
  constexpr int kGroups = op == Operand::nvfp4 ? 4 : 2;
  __shared__ uint4 codes[128][9];  // padded against bank conflicts
  __shared__ uint32_t scales[kSlabs][128];
  const WeightShape& shape = a.shape;
  const int slabs = shape.slabs(), row_tiles = shape.row_tiles(), parts = (slabs + kSlabs - 1) / kSlabs;
  const int first = static_cast<int>(blockIdx.x % parts) * kSlabs, count = min(kSlabs, slabs - first);
  const int64_t tile = blockIdx.x / parts, expert = tile / row_tiles;
  const int row_tile = static_cast<int>(tile % row_tiles);
  const int64_t bytes = kFp8 ? shape.k : shape.k / 2;
#pragma unroll
  for (int i = 0; i < 128 * 8 / kThreads; ++i) {
    const int r = (i * kThreads + static_cast<int>(threadIdx.x)) / 8, piece = static_cast<int>(threadIdx.x) % 8;
    const Source s = source_of(a, expert, row_tile, r);
    codes[r][piece] =
        s.row < 0 ? uint4{}
                  : row_bytes16(s.stack->codes, s.row, bytes, static_cast<int64_t>(first) * kPieces * 16 + piece * 16);
  }
  for (int i = threadIdx.x; i < 128 * kSlabs; i += kThreads) {
    const int r = i / kSlabs, slab = i % kSlabs;
    const Source s = source_of(a, expert, row_tile, r);
    scales[slab][r] = slab_scales<op>(a, s, first + slab, a.row_scale[tile * kTileRows + r]);
  }
  __syncthreads();
  const int wg = threadIdx.x / 128, t = threadIdx.x % 128, pair = t % 4;
  const int row0 = wg * 64 + t / 32 * 16 + t % 32 / 4;
  for (int slab = 0; slab < count; ++slab) {
    uint8_t* out = a.weights + (tile * slabs + first + slab) * slab_bytes(op);
    const uint32_t low = scales[slab][row0], high = scales[slab][row0 + 8];
    const auto kept = [&](int s) {
      const int shift = 8 * (op == Operand::nvfp4 ? s : s / 2);
      return static_cast<uint32_t>((low >> shift & 255u) != 0) | static_cast<uint32_t>((high >> shift & 255u) != 0)
                                                                     << 1;
    };
    const uint4 *a0 = codes[row0] + slab * kPieces, *a1 = codes[row0 + 8] + slab * kPieces;
    uint32_t words[8];
    if constexpr (kFp8) {
#pragma unroll
      for (int s = 0; s < 4; ++s) {
        const uint2 w = place_step_e4m3(a0[s], a1[s], pair, kept(s));
        words[2 * s] = w.x, words[2 * s + 1] = w.y;
      }
      *reinterpret_cast<uint4*>(out + wg * 4096 + t * 16) = {words[0], words[1], words[2], words[3]};
      *reinterpret_cast<uint4*>(out + wg * 4096 + 2048 + t * 16) = {words[4], words[5], words[6], words[7]};
    } else {
#pragma unroll
      for (int s = 0; s < 4; ++s) {
        const uint4 l = a0[s / 2], h = a1[s / 2];
        words[s] = s % 2 == 0 ? place_step_e2m1({l.x, l.y}, {h.x, h.y}, pair, kept(s))
                              : place_step_e2m1({l.z, l.w}, {h.z, h.w}, pair, kept(s));
      }
      *reinterpret_cast<uint4*>(out + wg * 2048 + t * 16) = {words[0], words[1], words[2], words[3]};
    }
    if (threadIdx.x < 128) {
      // Of 16 rows, row and row + 8 share a fragment.
      const int r = t, fragment = r / 16 * 8 + r % 8;
      uint8_t* to = out + slab_code_bytes(op) + (fragment * 2 + r / 8 % 2) * kGroups;
      if constexpr (kGroups == 4)
        *reinterpret_cast<uint32_t*>(to) = scales[slab][r];
      else
        *reinterpret_cast<uint16_t*>(to) = static_cast<uint16_t>(scales[slab][r]);
    }
  }
}

template <Operand op>
void launch_packed(const PrepareArgs& args, Stream stream) {
  const WeightShape& s = args.shape;
  const int64_t parts = ceil_div<int64_t>(s.slabs(), op == Operand::mxfp8 ? 2 : 4);
  launch(packed_kernel<op>, static_cast<int>(s.experts * s.row_tiles() * parts), kThreads, 0, stream, false, args);
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
  switch (s.operand) {
    case Operand::mxfp8:
      return launch_packed<Operand::mxfp8>(args, stream);
    case Operand::nvfp4:
      return launch_packed<Operand::nvfp4>(args, stream);
    case Operand::mxfp4:
      return launch_packed<Operand::mxfp4>(args, stream);
    case Operand::bf16:
    case Operand::fp8:
    case Operand::fp8_block:
      launch(slab_kernel, static_cast<int>(s.experts * s.row_tiles() * s.slabs()), kThreads, 0, stream, false, args);
  }
}

}  // namespace sluice::sm90
