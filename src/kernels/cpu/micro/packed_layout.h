// SPDX-License-Identifier: Apache-2.0
// Sizes of the packed weight layout, and the packed forms of an input row. The kernels of all instruction sets read
// them. kernels/cpu/packed_weights.h describes the weights; kernels/cpu/packed_rows.h makes the input rows.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sluice::kernels::cpu {

inline constexpr int kPanelN = 16;                     // outputs n (rows of W) per panel, one per vector lane
inline constexpr int kNTilePanels = 2;                 // panels per N-tile; the last N-tile of a matrix may have one
inline constexpr int kNTile = kPanelN * kNTilePanels;  // outputs n per N-tile

// The packed form of an input row. K' is K rounded up to 32; values from K on are zero.
enum class PackedType : uint8_t {
  f32,          // float[K']
  bf16,         // bfloat16[K']
  nvfp4,        // Nvfp4Group[K'/16]: small integers
  fixed_point,  // FixedPointRow: integers of 16 or 24 bits with a power-of-two scale per 32 k, and a list of outliers
};

// 16 input values with one scale. Twice an e2m1 value is an integer, so products of two e2m1 values are summed exactly
// in int32: sum(x w) = 0.25 * sum(2x * 2w). vpdpbusd needs one unsigned operand: the weights are stored as 2w + 12, and
// `offset` = -12 * sum(2x) removes the 12 again. micro/nvfp4_dot.h gives the order of the codes.
struct Nvfp4Group {
  int8_t codes[16];  // 2x
  float scale;       // block scale / 4
  int32_t offset;
};

// A row of bfloat16 values as block fixed point, for micro/mxfp4_dot.h. A block of 32 values is 24-bit integers times
// one power of two, which the largest magnitude of the block decides. A bfloat16 value has 8 significant bits, so every
// value of at least 2^-15 of the largest is exact. The integers are stored as three planes of bytes. If few values of
// the row are below 2^-7 of their block's largest, the low plane is zero and kernels skip it. Outliers are the values
// that the row's planes cannot hold, infinities and NaN: they are zero in the planes and listed by ascending k.
inline constexpr int kFixedBlockK = 32;
inline constexpr int kFixedChunkK = 256;             // kernels add a chunk's outliers after its blocks
inline constexpr float kFixedFactor = 0.5f;          // in scales and outliers, because decoded weights are 2w
inline constexpr int kFixedMaxSum = INT32_MAX / 12;  // of a block's magnitudes, so that sums with weights fit in int32
inline constexpr int kFixedBias = 1 << 23;           // added to the integers, because vpdpbusd wants unsigned bytes
struct Outlier {
  float value;     // times kFixedFactor
  uint16_t k;      // within its chunk
  uint16_t block;  // k / kFixedBlockK
};
struct FixedPointRow {
  // Offsets in bytes from the row's start. The upper two planes start at 0: per 32 k, 32 bytes with bits 16-23, then 32
  // bytes with bits 8-15, both in the order of Nvfp4Group::codes.
  int64_t low = 0;             // uint8[K']: bits 0-7
  int64_t scales = 0;          // float[K'/32][2]: for a sum over two planes, for a sum over three
  int64_t outlier_starts = 0;  // int32[1 + chunks + 1]: planes in use (2 or 3), then the first outlier of each chunk
  int64_t outliers = 0;        // Outlier[at most K']
  int64_t bytes = 0;
  explicit constexpr FixedPointRow(int64_t k)
      : low(2 * k),
        scales(low + k),
        outlier_starts(scales + k / kFixedBlockK * 8),
        outliers((outlier_starts + ((k + kFixedChunkK - 1) / kFixedChunkK + 2) * 4 + 7) / 8 * 8),
        bytes(outliers + k * static_cast<int64_t>(sizeof(Outlier))) {}
};

}  // namespace sluice::kernels::cpu
