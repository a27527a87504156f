// SPDX-License-Identifier: Apache-2.0
#include "format/quantize.h"
#include "kernels/sm90/grouped_gemm/operand.cuh"
#include "kernels/sm90/launch.cuh"
#include "kernels/sm90/prepare/prepare.h"

namespace sluice::sm90 {

namespace {

constexpr int kThreads = 256;

HD constexpr bool is_mx(format::Format f) { return f == format::Format::mxfp8 || f == format::Format::mxfp4; }

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

// The canonical rows behind rows r, r + every, r + 2 * every, ... of a row tile, `every` a multiple of 16.
struct EvenRows {
  const CanonicalStack* stack;
  int64_t first;    // [experts * rows]
  int count, step;  // not padding, and how far apart
  __device__ EvenRows(const PrepareArgs& a, int64_t expert, int row_tile, int r, int every) {
    const bool gated = a.shape.gated;
    const int64_t local =
        gated ? static_cast<int64_t>(row_tile) * 64 + gated_column(r) : static_cast<int64_t>(row_tile) * kTileRows + r;
    stack = gated && is_gate(r) ? &a.gate : &a.up;
    first = expert * a.shape.rows + local;
    step = gated ? every / 2 : every;
    const int left = static_cast<int>(a.shape.rows - local);
    count = left > 0 ? (left + step - 1) / step : 0;
  }
};

// The largest of a row's scale bytes, by kLanes neighbouring lanes.
template <int kLanes>
__device__ inline uint32_t largest_scale(const uint8_t* scales, int groups) {
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  uint32_t four = 0;
  if (groups % 16 == 0) {
#pragma unroll 4
    for (int i = lane; i < groups / 16; i += kLanes) {
      const uint4 v = __ldg(reinterpret_cast<const uint4*>(scales) + i);
      four = __vmaxu4(four, __vmaxu4(__vmaxu4(v.x, v.y), __vmaxu4(v.z, v.w)));
    }
  } else if (groups % 2 == 0) {
#pragma unroll 4
    for (int i = lane; i < groups / 2; i += kLanes)
      four = __vmaxu4(four, __ldg(reinterpret_cast<const uint16_t*>(scales) + i));
  } else {
    for (int i = lane; i < groups; i += kLanes) four = max(four, uint32_t{scales[i]});
  }
#pragma unroll
  for (int step = 1; step < kLanes; step *= 2) four = __vmaxu4(four, __shfl_xor_sync(0xffffffffu, four, step));
  return max(max(four & 255u, four >> 8 & 255u), max(four >> 16 & 255u, four >> 24));
}

// Four lanes a row for MX operands, which keep scales relative to their row's largest, the row's factor.
template <int kLanes>
__global__ void __launch_bounds__(kThreads) row_scale_kernel(const __grid_constant__ PrepareArgs a) {
  constexpr int kRows = kThreads / kLanes, kParts = ceil_div(kTileRows, kRows);
  const int64_t expert = blockIdx.y;
  const int row_tile = static_cast<int>(blockIdx.x) / kParts;
  const int r = static_cast<int>(blockIdx.x) % kParts * kRows + static_cast<int>(threadIdx.x) / kLanes;
  if (r >= kTileRows) return;
  const Source s = source_of(a, expert, row_tile, r);
  float scale = 1.0f;
  if constexpr (kLanes > 1) {
    const int groups = static_cast<int>(ceil_div<int64_t>(a.shape.k, 32));
    const uint32_t largest =
        largest_scale<kLanes>(static_cast<const uint8_t*>(s.stack->scales) + s.row * groups, s.row >= 0 ? groups : 0);
    if (s.row >= 0) scale = format::e8m0_to_float(static_cast<uint8_t>(largest));
  } else if (s.row >= 0) {
    if (a.format == format::Format::nvfp4)
      scale = s.stack->global[expert] * 256.0f;
    else
      scale = static_cast<const float*>(s.stack->scales)[a.format == format::Format::fp8_tensor ? expert : s.row];
  }
  if (threadIdx.x % kLanes == 0) a.row_scale[(expert * a.shape.row_tiles() + row_tile) * kTileRows + r] = scale;
}

template <int kLanes>
void launch_row_scales(const PrepareArgs& a, Stream stream) {
  const unsigned parts = ceil_div(kTileRows * kLanes, kThreads);
  launch(row_scale_kernel<kLanes>,
         dim3(static_cast<unsigned>(a.shape.row_tiles()) * parts, static_cast<unsigned>(a.shape.experts)), kThreads, 0,
         stream, false, a);
}

__global__ void __launch_bounds__(kThreads) block_scale_kernel(const __grid_constant__ PrepareArgs a) {
  const int64_t total = a.shape.block_scales() / 4;
  const int runs = scale_runs(a.shape.operand, a.shape.slabs()), row_tiles = a.shape.row_tiles();
  const int64_t blocks_n = ceil_div<int64_t>(a.shape.rows, 128);
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < total;
       i += static_cast<int64_t>(gridDim.x) * kThreads) {
    const int run = static_cast<int>(i % runs);
    const int64_t tile = i / runs, expert = tile / row_tiles;
    const int64_t block = tile % row_tiles * (a.shape.gated ? 64 : 128) / 128;
    float up = 0.0f, gate = 0.0f;
    if (block < blocks_n) {
      const int64_t at = (expert * blocks_n + block) * runs + run;
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

// N pieces of 16 bytes of a row tile's rows, piece i * kThreads + threadIdx.x of `Pieces` a row; the first `pieces` of
// a row, from byte `first` on, are read. The test for alignment stands outside, so that all N loads are under way at
// once.
template <int N, int Pieces>
__device__ inline void read_pieces(const PrepareArgs& a, int64_t expert, int row_tile, int64_t row_bytes, int64_t first,
                                   int pieces, uint4 (&v)[N]) {
  const auto row = [](int i) { return (i * kThreads + static_cast<int>(threadIdx.x)) / Pieces; };
  const int64_t at = first + static_cast<int>(threadIdx.x) % Pieces * 16;
  if (row_bytes % 16 == 0) {
    const EvenRows rows(a, expert, row_tile, row(0), kThreads / Pieces);
    const uint8_t* p = static_cast<const uint8_t*>(rows.stack->codes) + rows.first * row_bytes + at;
    const int count = static_cast<int>(threadIdx.x) % Pieces < pieces && at < row_bytes ? rows.count : 0;
#pragma unroll
    for (int i = 0; i < N; ++i)
      v[i] = i < count ? __ldg(reinterpret_cast<const uint4*>(p + i * (rows.step * row_bytes))) : uint4{};
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
  if (e4m3 == 0) return 0;
  if (e4m3 >= 8) return e4m3 + (3u << 3);               // bias 7 -> 10
  const int shift = e4m3 >= 4 ? 1 : e4m3 >= 2 ? 2 : 3;  // m * 2^-9 = 1.f * 2^(-6 - shift)
  return static_cast<uint32_t>(4 - shift) << 3 | ((e4m3 << shift) & 7u);
}

__device__ inline uint32_t wide_scales4(uint32_t e4m3) {
  e4m3 &= 0x7f7f7f7fu;
  if (((e4m3 + 0x78787878u) & 0x80808080u) == 0x80808080u) return e4m3 + 0x18181818u;  // all are normal numbers
  uint32_t word = 0;
#pragma unroll
  for (int j = 0; j < 4; ++j) word |= wide_scale(e4m3 >> (8 * j) & 255u) << (8 * j);
  return word;
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
  read_pieces<kPieces, 8>(a, expert, row_tile, bytes, static_cast<int64_t>(slab) * 128, 8, v);
#pragma unroll
  for (int i = 0; i < kPieces; ++i) {
    const int r = (i * kThreads + static_cast<int>(threadIdx.x)) / 8, piece = static_cast<int>(threadIdx.x) % 8;
    *reinterpret_cast<uint4*>(out + (r / 64) * 8192 + swizzled(r % 64, piece)) = v[i];
  }
}

// Scale bytes of one slab of the N rows `row`, row + every, ...; byte j belongs to group j.
template <Operand op, int N>
__device__ inline void read_scales(const PrepareArgs& a, int64_t expert, int row_tile, int row, int every,
                                   int64_t row_groups, int slab, uint32_t (&read)[N]) {
  constexpr int kGroups = op == Operand::nvfp4 ? 4 : 2;
  const EvenRows rows(a, expert, row_tile, row, every);
  const int64_t first = static_cast<int64_t>(slab) * kGroups, step = rows.step * row_groups;
  const uint8_t* p = static_cast<const uint8_t*>(rows.stack->scales) + rows.first * row_groups + first;
  if (row_groups % kGroups == 0) {  // whole slabs of scales a row
    const int count = first < row_groups ? rows.count : 0;
#pragma unroll
    for (int i = 0; i < N; ++i)
      read[i] = i >= count     ? 0u
                : kGroups == 4 ? __ldg(reinterpret_cast<const uint32_t*>(p + i * step))
                               : __ldg(reinterpret_cast<const uint16_t*>(p + i * step));
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i) read[i] = 0;
#pragma unroll 1
    for (int i = 0; i < rows.count && i < N; ++i) {
      uint32_t word = 0;
      for (int j = 0; j < kGroups && first + j < row_groups; ++j)
        word |= static_cast<uint32_t>(p[i * step + j]) << (8 * j);
#pragma unroll
      for (int k = 0; k < N; ++k)
        if (k == i) read[k] = word;  // registers have no index
    }
  }
}
// As the decoder wants them.
template <Operand op>
__device__ inline uint32_t slab_scales(uint32_t read, float row_scale) {
  if constexpr (op == Operand::nvfp4) return wide_scales4(read);
  uint32_t word = 0;
  // MX: the exponent field of the bf16 multiplier; row_scale carries the row's largest scale.
  const int largest = static_cast<int>(__float_as_uint(row_scale) >> 23 & 255u);
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const int byte = static_cast<int>(read >> (8 * j) & 255u);
    const int field = (decodes_e4m3(op) ? 247 : 253) - (largest - byte);
    word |= (byte == 0 || field < 1 ? 0u : static_cast<uint32_t>(field)) << (8 * j);
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

template <int kBytes>
__device__ inline bool has_zero_byte(uint32_t w) {
  if (kBytes == 2) w |= 0x01010000u;
  return ((w - 0x01010101u) & ~w & 0x80808080u) != 0;
}

// Packed operands: 256 bytes of each of 128 rows (eight slabs of e2m1, four of e4m3) by one block of threads, through
// shared memory: rows come in wide, and 32 bytes of their scales with NVFP4; fragments leave wide.
constexpr int packed_slabs(Operand op) { return decodes_e4m3(op) ? 4 : 8; }
template <Operand op>
__global__ void __launch_bounds__(kThreads, 4) packed_kernel(const __grid_constant__ PrepareArgs a) {
  constexpr bool kFp8 = decodes_e4m3(op);
  constexpr int kSlabs = packed_slabs(op), kPieces = kFp8 ? 4 : 2;  // 16-byte pieces of a row in a slab
  constexpr int kGroups = op == Operand::nvfp4 ? 4 : 2;
  __shared__ uint4 codes[128][17];  // padded against bank conflicts
  __shared__ uint32_t scales[kSlabs][132];
  const WeightShape& shape = a.shape;
  const int slabs = shape.slabs(), row_tiles = shape.row_tiles(), parts = (slabs + kSlabs - 1) / kSlabs;
  const int part = (slabs + parts - 1) / parts, first = static_cast<int>(blockIdx.x % parts) * part;
  const int count = min(part, slabs - first);
  const uint32_t tile_index = blockIdx.x / parts;
  const int row_tile = static_cast<int>(tile_index % row_tiles);
  const int64_t tile = tile_index, expert = tile_index / row_tiles;
  const int64_t bytes = kFp8 ? shape.k : shape.k / 2;
  constexpr int kCodes = 128 * 16 / kThreads, kScales = 128 * kSlabs / kThreads;
  const bool ones = kFp8 && a.format != format::Format::mxfp8;  // FP8 whose scales are elsewhere
  const auto scale_row = [](int i) { return (i * kThreads + static_cast<int>(threadIdx.x)) / kSlabs; };
  const int scale_slab = static_cast<int>(threadIdx.x) % kSlabs;
  // First, because what was read on two paths is waited for where they join.
  float row_scale[kScales];
#pragma unroll
  for (int i = 0; i < kScales; ++i)
    row_scale[i] = ones || op == Operand::nvfp4 ? 1.0f : __ldg(a.row_scale + tile * kTileRows + scale_row(i));
  uint4 v[kCodes];
  read_pieces<kCodes, 16>(a, expert, row_tile, bytes, static_cast<int64_t>(first) * kPieces * 16, count * kPieces, v);
  uint32_t read[kScales];
  if (ones) {
#pragma unroll
    for (int i = 0; i < kScales; ++i) read[i] = 0x7f7fu;
  } else {
    read_scales<op>(a, expert, row_tile, scale_row(0), kThreads / kSlabs, ceil_div<int64_t>(shape.k, 64 / kGroups),
                    first + scale_slab, read);
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
    const uint4 *a0 = codes[row0] + slab * kPieces, *a1 = codes[row0 + 8] + slab * kPieces;
    const auto place = [&]<bool kDrops>() {
      const auto kept = [](uint32_t row, int s) {
        return !kDrops || (row >> (8 * (op == Operand::nvfp4 ? s : s / 2)) & 255u) != 0;
      };
      uint32_t words[kFp8 ? 8 : 4];
#pragma unroll
      for (int s = 0; s < 4; ++s) {
        if constexpr (kFp8) {
          const uint2 w = place_step_e4m3(a0[s], a1[s], pair, kept(low, s), kept(high, s));
          words[2 * s] = w.x, words[2 * s + 1] = w.y;
        } else {
          const uint4 l = a0[s / 2], h = a1[s / 2];
          words[s] = s % 2 == 0 ? place_step_e2m1({l.x, l.y}, {h.x, h.y}, pair, kept(low, s), kept(high, s))
                                : place_step_e2m1({l.z, l.w}, {h.z, h.w}, pair, kept(low, s), kept(high, s));
        }
      }
      uint8_t* to = out + wg * (kFp8 ? 4096 : 2048) + t * 16;
      *reinterpret_cast<uint4*>(to) = {words[0], words[1], words[2], words[3]};
      if constexpr (kFp8) *reinterpret_cast<uint4*>(to + 2048) = {words[4], words[5], words[6], words[7]};
    };
    // A scale of zero is rare, and dropping its codes a fifth of the instructions.
    if (has_zero_byte<kGroups>(low) || has_zero_byte<kGroups>(high))
      place.template operator()<true>();
    else
      place.template operator()<false>();
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
    is_mx(args.format) ? launch_row_scales<4>(args, stream) : launch_row_scales<1>(args, stream);
  if (args.block_scale != nullptr)
    launch(block_scale_kernel, static_cast<int>(ceil_div<int64_t>(s.block_scales() / 4, kThreads)), kThreads, 0, stream,
           false, args);
  switch (s.operand) {
    case Operand::mxfp8:
    case Operand::fp8_f32:
    case Operand::fp8_block_f32:  // the same layout
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
