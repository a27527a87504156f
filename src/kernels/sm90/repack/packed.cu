// SPDX-License-Identifier: Apache-2.0
// Packed operands: codes and scales of an M-tile to the fragments of the decoder, several k-blocks per block. A thread
// takes one k-block of rows r and r + 8: 64 or 128 bytes that lie together, and all that the fragments of four lanes
// hold of it. k-blocks follow each other in memory, so the result of a block, an image in shared memory, is stored in
// order.
#include "format/quantize.h"
#include "kernels/ptx/sync.cuh"
#include "kernels/sm90/launch.cuh"
#include "kernels/sm90/repack/canonical_row.cuh"
#include "kernels/sm90/repack/packed.h"
#include "kernels/sm90/repack/place.cuh"
#include "kernels/sm90/tuning.h"

namespace sluice::sm90 {

namespace {

constexpr int kThreads = kRepackThreads;

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

// Two scales of MX: the exponent fields of bf16 multipliers, relative to the row's largest, which row_scale carries.
// What is too small for one, and the smallest scale itself, are 0.
template <WeightOperand op>
__device__ inline uint32_t mx_fields(uint32_t read, uint32_t largest) {
  const uint32_t bytes = ptx::prmt(read, 0u, 0x4140u), add = ((decodes_e4m3(op) ? 247u : 253u) - largest) & 0xffffu;
  uint32_t fields = __viaddmax_s16x2_relu(bytes, add * 0x00010001u, 0u);
  if ((bytes & 0xffffu) == 0) fields &= 0xffff0000u;
  if (bytes >> 16 == 0) fields &= 0xffffu;
  return ptx::prmt(fields, 0u, 0x4420u);
}

// kKBlocks: the most k-blocks per block, 8 or 4 of e2m1, 4 of e4m3. A multiprocessor holds more narrow blocks, and they
// leave fewer lanes idle if rows are short. But every block reads all MX scales of its rows, which costs more if rows
// are long and blocks are narrow.
template <WeightOperand op, int kKBlocks>
struct Packing {
  static constexpr bool fp8 = decodes_e4m3(op);
  static constexpr int row_bytes = fp8 ? 64 : 32;                    // of a k-block
  static constexpr int groups = op == WeightOperand::nvfp4 ? 4 : 2;  // scales of a row in a k-block
  static constexpr int items = 64 * kKBlocks / kThreads;             // pairs of rows of a thread
  static constexpr int blocks = items * row_bytes == 32 ? 6 : 4;     // a multiprocessor: what registers allow
};

// The larger of `two` (halves) and the bytes of a word.
__device__ inline uint32_t larger_bytes(uint32_t two, uint32_t word) {
  return __vimax3_u16x2(two, word & 0x00ff00ffu, ptx::prmt(word, 0u, 0x4341u));
}
__device__ inline uint32_t larger_bytes(uint32_t two, const uint4& v) {
  return larger_bytes(larger_bytes(larger_bytes(larger_bytes(two, v.x), v.y), v.z), v.w);
}
// The largest byte of each row of scales, by kLanes neighbouring lanes; eight reads are under way at once.
template <class Word, int kLanes, int kRows>
__device__ inline void largest_bytes(const uint8_t* const (&rows)[kRows], int bytes, uint32_t (&largest)[kRows]) {
  constexpr int kReads = 8 / kRows;
  const int words = bytes / static_cast<int>(sizeof(Word)), lane = static_cast<int>(threadIdx.x) % kLanes;
#pragma unroll 1
  for (int first = lane; first < words; first += kReads * kLanes) {
    Word v[kReads][kRows];
#pragma unroll
    for (int i = 0; i < kReads; ++i)
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        v[i][r] = Word{};
        if (first + i * kLanes < words) v[i][r] = __ldg(reinterpret_cast<const Word*>(rows[r]) + first + i * kLanes);
      }
#pragma unroll
    for (int i = 0; i < kReads; ++i)
#pragma unroll
      for (int r = 0; r < kRows; ++r) largest[r] = larger_bytes(largest[r], v[i][r]);
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    uint32_t two = largest[r];
#pragma unroll
    for (int step = 1; step < kLanes; step *= 2) two = __vmaxu2(two, __shfl_xor_sync(0xffffffffu, two, step));
    largest[r] = max(two & 0xffffu, two >> 16);
  }
}
template <int kLanes, int kRows>
__device__ inline void largest_scales(const uint8_t* const (&rows)[kRows], int groups, uint32_t (&largest)[kRows]) {
  if (groups % 16 == 0)
    largest_bytes<uint4, kLanes>(rows, groups, largest);
  else if (groups % 4 == 0)
    largest_bytes<uint32_t, kLanes>(rows, groups, largest);
  else if (groups % 2 == 0)
    largest_bytes<uint16_t, kLanes>(rows, groups, largest);
  else
    largest_bytes<uint8_t, kLanes>(rows, groups, largest);
}

// A row's part of a k-block.
template <class P>
struct RowPart {
  uint32_t words[P::row_bytes / 4];  // codes
  uint32_t scales;

  // kWide: rows are multiples of 16 bytes and of a k-block's scales. Without branches, so that all loads of a thread
  // are under way together.
  template <bool kWide>
  __device__ void read(const CanonicalStack& stack, bool real, int64_t row, int k_block, bool mine, int row_bytes,
                       int groups) {
    const uint8_t* p = static_cast<const uint8_t*>(stack.codes) + row * row_bytes;
#pragma unroll
    for (int i = 0; i < P::row_bytes / 16; ++i) {
      const int at = k_block * P::row_bytes + i * 16;
      uint4 v{};
      if constexpr (kWide) {
        if (real && mine && at < row_bytes) v = __ldg(reinterpret_cast<const uint4*>(p + at));
      } else {
        if (real && mine) v = row_bytes16(p, at, row_bytes);
      }
      words[4 * i] = v.x, words[4 * i + 1] = v.y, words[4 * i + 2] = v.z, words[4 * i + 3] = v.w;
    }
    scales = 0;
    const int first = k_block * P::groups;
    const uint8_t* from = static_cast<const uint8_t*>(stack.scales) + row * groups;
    if constexpr (kWide) {
      if (real && mine && P::groups == 4) scales = __ldg(reinterpret_cast<const uint32_t*>(from + first));
      if (real && mine && P::groups == 2) scales = __ldg(reinterpret_cast<const uint16_t*>(from + first));
    } else if (real && mine) {
#pragma unroll 1
      for (int j = 0; j < P::groups && first + j < groups; ++j)
        scales |= static_cast<uint32_t>(from[first + j]) << (8 * j);
    }
  }

  // Codes whose scale is zero are zero: the decoder's scale of that byte is not.
  __device__ void drop() {
    if (P::groups == 2) scales |= 0x01010000u;
    if (((scales - 0x01010101u) & ~scales & 0x80808080u) == 0) return;  // rare
#pragma unroll
    for (int g = 0; g < P::groups; ++g)
      if ((scales >> (8 * g) & 255u) == 0) {
        constexpr int kWords = P::row_bytes / 4 / P::groups;
#pragma unroll
        for (int i = 0; i < kWords; ++i) words[g * kWords + i] = 0;
      }
  }
};

template <class P>
__device__ inline void place(const RowPart<P>& low, const RowPart<P>& high, uint8_t* codes, uint8_t* scales) {
  if constexpr (P::fp8) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint32_t words[4][4];  // lane, word
#pragma unroll
      for (int s = 0; s < 2; ++s) {
        const uint32_t *l = low.words + (2 * half + s) * 4, *h = high.words + (2 * half + s) * 4;
#pragma unroll
        for (int i = 0; i < 2; ++i) {  // columns 0 to 7, 8 to 15
          place_e4m3(l[2 * i], h[2 * i], words[0][2 * s + i], words[1][2 * s + i]);
          place_e4m3(l[2 * i + 1], h[2 * i + 1], words[2][2 * s + i], words[3][2 * s + i]);
        }
      }
#pragma unroll
      for (int i = 0; i < 4; ++i)
        *reinterpret_cast<uint4*>(codes + half * 2048 + i * 16) = {words[i][0], words[i][1], words[i][2], words[i][3]};
    }
  } else {
    uint32_t words[4][4];  // step, lane
#pragma unroll
    for (int s = 0; s < 4; ++s)
      place_e2m1(low.words[2 * s], high.words[2 * s], low.words[2 * s + 1], high.words[2 * s + 1], words[s]);
#pragma unroll
    for (int i = 0; i < 4; ++i)
      *reinterpret_cast<uint4*>(codes + i * 16) = {words[0][i], words[1][i], words[2][i], words[3][i]};
  }
  // Both rows' scales of a group side by side.
  if constexpr (P::groups == 4)
    *reinterpret_cast<uint2*>(scales) = {ptx::prmt(low.scales, high.scales, 0x5140u),
                                         ptx::prmt(low.scales, high.scales, 0x7362u)};
  else
    *reinterpret_cast<uint32_t*>(scales) = ptx::prmt(low.scales, high.scales, 0x5140u);
}

// Grid: parts of a row (`part` k-blocks each), M-tiles, experts. kScaled: MX or NVFP4; else FP8 whose scales are
// elsewhere.
template <WeightOperand op, int kKBlocks, bool kScaled, bool kWide>
__global__ void __launch_bounds__(kThreads, Packing<op, kKBlocks>::blocks)
    packed_kernel(const __grid_constant__ RepackArgs a, int part) {
  using P = Packing<op, kKBlocks>;
  constexpr bool kMx = kScaled && op != WeightOperand::nvfp4;
  __shared__ __align__(128) uint8_t image[kKBlocks * k_block_bytes(op)];
  ptx::griddepcontrol_launch_dependents();
  const WeightShape& shape = a.shape;
  const int m_tile = static_cast<int>(blockIdx.y), k = static_cast<int>(shape.k), k_blocks = (k + 63) / 64;
  const int64_t expert = blockIdx.z, tile = expert * gridDim.y + m_tile;
  const int first = static_cast<int>(blockIdx.x) * part, count = min(part, k_blocks - first);
  const int row_bytes = P::fp8 ? k : k / 2, groups = kScaled ? (k + 64 / P::groups - 1) / (64 / P::groups) : 0;
  // Neighbouring lanes take neighbouring k-blocks of rows r and r + 8: `pair` of 64.
  const int k_block = static_cast<int>(threadIdx.x) % kKBlocks;
  const auto pair = [](int i) { return (i * kThreads + static_cast<int>(threadIdx.x)) / kKBlocks; };
  const auto row = [](int pair) { return pair / 8 * 16 + pair % 8; };
  const CanonicalStack &up = a.up, &other = shape.gated ? a.gate : a.up;
  const auto local = [&](int i, bool upper) {
    if (shape.gated) return m_tile * int64_t{64} + pair(i);
    return m_tile * int64_t{128} + row(pair(i)) + (upper ? 8 : 0);
  };
  [[maybe_unused]] uint32_t largest[2 * P::items] = {};
  const auto find_largest = [&] {
    const uint8_t* scale_rows[2 * P::items];
#pragma unroll
    for (int i = 0; i < 2 * P::items; ++i) {
      const int64_t l = local(i / 2, i % 2 != 0);  // of padding rows any will do
      scale_rows[i] = static_cast<const uint8_t*>((i % 2 != 0 ? other : up).scales) +
                      (expert * shape.rows + (l < shape.rows ? l : 0)) * groups;
    }
    largest_scales<kKBlocks>(scale_rows, groups, largest);
  };
  // First, while registers are free.
  if constexpr (kMx) find_largest();
  RowPart<P> low[P::items], high[P::items];
#pragma unroll
  for (int i = 0; i < P::items; ++i) {
    const int64_t l = local(i, false), h = local(i, true), base = expert * shape.rows;
    low[i].template read<kWide>(up, l < shape.rows, base + l, first + k_block, k_block < count, row_bytes, groups);
    high[i].template read<kWide>(other, h < shape.rows, base + h, first + k_block, k_block < count, row_bytes, groups);
  }
  ptx::griddepcontrol_wait();  // before anything is written
#pragma unroll
  for (int i = 0; i < P::items; ++i) {
    if constexpr (kMx) {
      low[i].scales = mx_fields<op>(low[i].scales, largest[2 * i]);
      high[i].scales = mx_fields<op>(high[i].scales, largest[2 * i + 1]);
      if (first == 0 && k_block == 0) {
        float* row_scale = a.row_scale + tile * kMTileRows + row(pair(i));
        row_scale[0] = format::e8m0_to_float(static_cast<uint8_t>(largest[2 * i]));
        row_scale[8] = format::e8m0_to_float(static_cast<uint8_t>(largest[2 * i + 1]));
      }
    } else if constexpr (kScaled) {
      low[i].scales = wide_scales4(low[i].scales);
      high[i].scales = wide_scales4(high[i].scales);
    } else {
      low[i].scales = high[i].scales = mx_fields<op>(0x7f7fu, 127);
    }
    if constexpr (kScaled) {
      low[i].drop();
      high[i].drop();
    }
    uint8_t* at = image + k_block * k_block_bytes(op);
    if (k_block < count)
      place(low[i], high[i], at + pair(i) / 32 * (k_block_code_bytes(op) / 2) + pair(i) % 32 * 64,
            at + k_block_code_bytes(op) + pair(i) * 2 * P::groups);
  }
  if (!kMx && first == 0 && a.row_scale != nullptr) write_row_scales(a, expert, m_tile);
  __syncthreads();
  // Not by the copy engine: compute-sanitizer's initcheck does not see its stores.
  const auto* from = reinterpret_cast<const uint4*>(image);
  auto* to = reinterpret_cast<uint4*>(a.weights + (tile * k_blocks + first) * k_block_bytes(op));
#pragma unroll 4
  for (int i = threadIdx.x; i < count * (k_block_bytes(op) / 16); i += kThreads) to[i] = from[i];
}

template <WeightOperand op, int kKBlocks, bool kScaled>
void launch_parts(const RepackArgs& args, Stream stream, bool pdl) {
  const WeightShape& s = args.shape;
  const int k_blocks = s.k_blocks(), parts = ceil_div(k_blocks, kKBlocks);
  const bool wide = (decodes_e4m3(op) ? s.k : s.k / 2) % 16 == 0 && (!kScaled || s.k % 64 == 0);
  const dim3 grid(static_cast<unsigned>(parts), static_cast<unsigned>(s.m_tiles()), static_cast<unsigned>(s.experts));
  launch(wide ? packed_kernel<op, kKBlocks, kScaled, true> : packed_kernel<op, kKBlocks, kScaled, false>, grid,
         kThreads, 0, stream, pdl, args, ceil_div(k_blocks, parts));  // equal parts
}
template <WeightOperand op>
void launch_e2m1(const RepackArgs& args, Stream stream, bool pdl) {
  args.shape.k <= tuning::kNarrowRepackColumns ? launch_parts<op, 4, true>(args, stream, pdl)
                                               : launch_parts<op, 8, true>(args, stream, pdl);
}

}  // namespace

void launch_packed(const RepackArgs& args, Stream stream, bool pdl) {
  if (args.shape.operand == WeightOperand::nvfp4)
    launch_e2m1<WeightOperand::nvfp4>(args, stream, pdl);
  else if (args.shape.operand == WeightOperand::mxfp4)
    launch_e2m1<WeightOperand::mxfp4>(args, stream, pdl);
  else if (args.format == format::Format::mxfp8)
    launch_parts<WeightOperand::mxfp8, 4, true>(args, stream, pdl);
  else  // FP8 in the layout of all that decode e4m3
    launch_parts<WeightOperand::mxfp8, 4, false>(args, stream, pdl);
}

}  // namespace sluice::sm90
