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
  uint32_t w[4] = {};
  for (int i = 0; i < 16; ++i)
    if (at + i < row_bytes) w[i / 4] |= static_cast<uint32_t>(p[i]) << (8 * (i % 4));
  return {w[0], w[1], w[2], w[3]};
}

// N pieces of 16 bytes of a row tile's rows, piece i * kThreads + threadIdx.x, `Pieces` a row from byte `first` on. The
// test for alignment stands outside, so that all N loads are under way at once.
template <int N, int Pieces>
__device__ inline void read_pieces(const PrepareArgs& a, int64_t expert, int row_tile, int64_t row_bytes, int64_t first,
                                   uint4 (&v)[N]) {
  const auto row = [](int i) { return (i * kThreads + static_cast<int>(threadIdx.x)) / Pieces; };
  const int64_t at = first + static_cast<int>(threadIdx.x) % Pieces * 16;
  if (row_bytes % 16 == 0) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const Source s = source_of(a, expert, row_tile, row(i));
      const uint8_t* p = static_cast<const uint8_t*>(s.stack->codes) + s.row * row_bytes + at;
      v[i] = s.row >= 0 && at < row_bytes ? __ldg(reinterpret_cast<const uint4*>(p)) : uint4{};
    }
  } else {
#pragma unroll 1
    for (int i = 0; i < N; ++i) {
      const Source s = source_of(a, expert, row_tile, row(i));
      const uint4 w = s.row >= 0 ? row_bytes16(s.stack->codes, s.row, row_bytes, at) : uint4{};
#pragma unroll
      for (int j = 0; j < N; ++j)
        if (j == i) v[j] = w;  // registers have no index
    }
  }
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
  // 32-bit divisions: 64-bit ones are a subroutine each.
  const uint32_t tile = blockIdx.x / slabs;
  const int slab = static_cast<int>(blockIdx.x - tile * slabs), row_tile = static_cast<int>(tile % row_tiles);
  const int64_t expert = tile / row_tiles;
  uint8_t* out = a.weights + static_cast<int64_t>(blockIdx.x) * slab_bytes(shape.operand);
  const int64_t bytes = shape.k * (shape.operand == Operand::bf16 ? 2 : 1);
  constexpr int kPieces = 1024 / kThreads;
  uint4 v[kPieces];
  read_pieces<kPieces, 8>(a, expert, row_tile, bytes, static_cast<int64_t>(slab) * 128, v);
#pragma unroll
  for (int i = 0; i < kPieces; ++i) {
    const int r = (i * kThreads + static_cast<int>(threadIdx.x)) / 8, piece = static_cast<int>(threadIdx.x) % 8;
    *reinterpret_cast<uint4*>(out + (r / 64) * 8192 + swizzled(r % 64, piece)) = v[i];
  }
}

// Scale bytes of one slab of a row; byte j belongs to group j. `aligned`: whole slabs of scales a row.
template <Operand op>
__device__ inline uint32_t read_scales(const Source& s, int64_t row_groups, int slab, bool aligned) {
  constexpr int kGroups = op == Operand::nvfp4 ? 4 : 2;
  const int64_t first = static_cast<int64_t>(slab) * kGroups;
  const uint8_t* from = static_cast<const uint8_t*>(s.stack->scales) + s.row * row_groups + first;
  if (aligned) {
    if (s.row < 0 || first >= row_groups) return 0;
    return kGroups == 4 ? __ldg(reinterpret_cast<const uint32_t*>(from))
                        : __ldg(reinterpret_cast<const uint16_t*>(from));
  }
  uint32_t read = 0;
  if (s.row >= 0)
    for (int j = 0; j < kGroups && first + j < row_groups; ++j) read |= static_cast<uint32_t>(from[j]) << (8 * j);
  return read;
}
// As the decoder wants them.
template <Operand op>
__device__ inline uint32_t slab_scales(uint32_t read, float row_scale) {
  constexpr int kGroups = op == Operand::nvfp4 ? 4 : 2;
  uint32_t word = 0;
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

// 16 columns of a thread's fragment, from 8 (e2m1) or 16 bytes (e4m3) of rows r and r + 8; bytes of a row whose scale
// is zero are dropped.
__device__ inline uint32_t place_step_e2m1(uint2 low, uint2 high, int pair, bool low_kept, bool high_kept) {
  const uint32_t byte = static_cast<uint32_t>(pair) * 0x11u + 0x40u;  // of the first and of the second word
  const uint32_t codes = ptx::prmt(ptx::prmt(low.x, high.x, byte), ptx::prmt(low.y, high.y, byte), 0x5410u);
  return place_e2m1(codes & ((low_kept ? 0x00ff00ffu : 0u) | (high_kept ? 0xff00ff00u : 0u)));
}
__device__ inline uint2 place_step_e4m3(const uint4& low, const uint4& high, int pair, bool low_kept, bool high_kept) {
  const uint32_t bytes = (pair & 1) == 0 ? 0x4140u : 0x4342u;  // two neighbouring codes to the low bytes of halves
  const auto codes = [&](const uint4& v, int half, bool kept) {
    const uint32_t word = (pair >> 1) == 0 ? (half == 0 ? v.x : v.z) : (half == 0 ? v.y : v.w);
    return kept ? ptx::prmt(word, 0u, bytes) : 0u;
  };
  return {place_e4m3(codes(low, 0, low_kept), codes(high, 0, high_kept)),
          place_e4m3(codes(low, 1, low_kept), codes(high, 1, high_kept))};
}

// Packed operands: 256 bytes of each of 128 rows (eight slabs of e2m1, four of e4m3) by one block of threads, through
// shared memory: rows come in wide, and 32 bytes of their scales with NVFP4; fragments leave wide.
constexpr int packed_slabs(Operand op) { return op == Operand::mxfp8 ? 4 : 8; }
template <Operand op>
__global__ void __launch_bounds__(kThreads, 4) packed_kernel(const __grid_constant__ PrepareArgs a) {
  constexpr bool kFp8 = op == Operand::mxfp8;
  constexpr int kSlabs = packed_slabs(op), kPieces = kFp8 ? 4 : 2;  // 16-byte pieces of a row in a slab
  constexpr int kGroups = op == Operand::nvfp4 ? 4 : 2;
  __shared__ uint4 codes[128][17];  // padded against bank conflicts
  __shared__ uint32_t scales[kSlabs][132];
  const WeightShape& shape = a.shape;
  const int slabs = shape.slabs(), row_tiles = shape.row_tiles(), parts = (slabs + kSlabs - 1) / kSlabs;
  const int first = static_cast<int>(blockIdx.x % parts) * kSlabs, count = min(kSlabs, slabs - first);
  const uint32_t tile_index = blockIdx.x / parts;
  const int row_tile = static_cast<int>(tile_index % row_tiles);
  const int64_t tile = tile_index, expert = tile_index / row_tiles;
  const int64_t bytes = kFp8 ? shape.k : shape.k / 2;
  constexpr int kCodes = 128 * 16 / kThreads, kScales = 128 * kSlabs / kThreads;
  uint4 v[kCodes];
  read_pieces<kCodes, 16>(a, expert, row_tile, bytes, static_cast<int64_t>(first) * kPieces * 16, v);
  const int64_t row_groups = ceil_div<int64_t>(shape.k, 64 / kGroups);
  const bool aligned = row_groups % kGroups == 0;
  uint32_t read[kScales];
  float row_scale[kScales];
  const auto scale_row = [](int i) { return (i * kThreads + static_cast<int>(threadIdx.x)) / kSlabs; };
  const int scale_slab = static_cast<int>(threadIdx.x) % kSlabs;
#pragma unroll
  for (int i = 0; i < kScales; ++i) {
    read[i] = read_scales<op>(source_of(a, expert, row_tile, scale_row(i)), row_groups, first + scale_slab, aligned);
    row_scale[i] = op == Operand::nvfp4 ? 1.0f : a.row_scale[tile * kTileRows + scale_row(i)];
  }
#pragma unroll
  for (int i = 0; i < kCodes; ++i)
    codes[(i * kThreads + static_cast<int>(threadIdx.x)) / 16][static_cast<int>(threadIdx.x) % 16] = v[i];
#pragma unroll
  for (int i = 0; i < kScales; ++i) scales[scale_slab][scale_row(i)] = slab_scales<op>(read[i], row_scale[i]);
  __syncthreads();
  const int wg = threadIdx.x / 128, t = threadIdx.x % 128, pair = t % 4;
  const int row0 = wg * 64 + t / 32 * 16 + t % 32 / 4;
  for (int slab = 0; slab < count; ++slab) {
    uint8_t* out = a.weights + (tile * slabs + first + slab) * slab_bytes(op);
    const uint32_t low = scales[slab][row0], high = scales[slab][row0 + 8];
    const auto kept = [](uint32_t row, int s) { return (row >> (8 * (op == Operand::nvfp4 ? s : s / 2)) & 255u) != 0; };
    const uint4 *a0 = codes[row0] + slab * kPieces, *a1 = codes[row0 + 8] + slab * kPieces;
    uint32_t words[8];
    if constexpr (kFp8) {
#pragma unroll
      for (int s = 0; s < 4; ++s) {
        const uint2 w = place_step_e4m3(a0[s], a1[s], pair, kept(low, s), kept(high, s));
        words[2 * s] = w.x, words[2 * s + 1] = w.y;
      }
      *reinterpret_cast<uint4*>(out + wg * 4096 + t * 16) = {words[0], words[1], words[2], words[3]};
      *reinterpret_cast<uint4*>(out + wg * 4096 + 2048 + t * 16) = {words[4], words[5], words[6], words[7]};
    } else {
#pragma unroll
      for (int s = 0; s < 4; ++s) {
        const uint4 l = a0[s / 2], h = a1[s / 2];
        words[s] = s % 2 == 0 ? place_step_e2m1({l.x, l.y}, {h.x, h.y}, pair, kept(low, s), kept(high, s))
                              : place_step_e2m1({l.z, l.w}, {h.z, h.w}, pair, kept(low, s), kept(high, s));
      }
      *reinterpret_cast<uint4*>(out + wg * 2048 + t * 16) = {words[0], words[1], words[2], words[3]};
    }
    if (threadIdx.x < 128) {
      // Of 16 rows, row and row + 8 share a fragment: bytes 2 * group and 2 * group + 1 of it are theirs. Two threads
      // write one, half of its groups each.
      const int fragment = t / 16 * 8 + t % 8, half = t / 8 % 2, row = t - 8 * half;
      const uint32_t of[2] = {scales[slab][row], scales[slab][row + 8]};
      uint8_t* to = out + slab_code_bytes(op) + (fragment * 2 + half) * kGroups;
      if constexpr (kGroups == 4)
        *reinterpret_cast<uint32_t*>(to) = ptx::prmt(of[0], of[1], half == 0 ? 0x5140u : 0x7362u);
      else
        *reinterpret_cast<uint16_t*>(to) = static_cast<uint16_t>(ptx::prmt(of[0], of[1], half == 0 ? 0x40u : 0x51u));
    }
  }
}

template <Operand op>
void launch_packed(const PrepareArgs& args, Stream stream) {
  const WeightShape& s = args.shape;
  const int64_t parts = ceil_div<int64_t>(s.slabs(), packed_slabs(op));
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
