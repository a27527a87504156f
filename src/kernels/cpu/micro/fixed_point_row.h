// SPDX-License-Identifier: Apache-2.0
// Packs input rows of bfloat16 values as FixedPointRow (packed_layout.h). A block of 32 values is a class of one
// instruction set (fixed_block_avx2.h, fixed_block_avx512.h):
//   Block(x)                    from 32 floats
//   scale                       value = integer * scale
//   lost, in_low                one bit per value: three planes cannot hold it; three planes hold it and two do not
//   clear(bits)                 makes integers zero
//   store_planes(upper, low)    64 bytes of the upper two planes, 32 bytes of the low one
#pragma once

#include "kernels/cpu/micro/inline.h"
#include "kernels/cpu/micro/row_ops.h"

namespace sluice::kernels::cpu {
namespace {

// A row uses a third plane if two would leave more outliers than this per block on average. A third plane costs 8 dots
// per block of 32 k, and one outlier costs about as much.
inline constexpr int kOutliersPerBlock = 1;

// Powers of two for a block whose largest finite magnitude has the biased exponent `exponent`: `up` makes integers of
// its values, and `down` is its inverse.
struct FixedScale {
  float up, down;
};
SLUICE_INLINE FixedScale fixed_scale(uint32_t exponent) {
  return {float_of((276 - exponent) << 23), float_of((exponent - 22) << 23)};
}
// The exponent of a block. `largest`: the bits of its largest finite magnitude. 2^-100 is the least, so that no factor
// is subnormal.
SLUICE_INLINE uint32_t fixed_exponent(uint32_t largest) { return largest >> 23 > 27 ? largest >> 23 : 27; }

// Writes x [padded], bfloat16 values as floats, as a FixedPointRow at `out`. Every value is stored exactly, in the
// planes or in the list of outliers. There are two loops, because the number of planes depends on the whole row.
template <class Block>
static void write_fixed_point_row(const float* x, int64_t padded, uint8_t* out) {
  const FixedPointRow at(padded);
  float* const scales = reinterpret_cast<float*>(out + at.scales);
  int32_t* const outlier_starts = reinterpret_cast<int32_t*>(out + at.outlier_starts);
  Outlier* const outliers = reinterpret_cast<Outlier*>(out + at.outliers);
  const int64_t blocks = padded / kFixedBlockK;
  int64_t in_low = 0;
  for (int64_t b = 0; b < blocks; ++b) {
    const Block c(x + b * kFixedBlockK);
    c.store_planes(out + 64 * b, out + at.low + 32 * b);
    scales[2 * b] = c.scale * 256.0f * kFixedFactor;
    scales[2 * b + 1] = c.scale * kFixedFactor;
    in_low += __builtin_popcount(c.in_low);
  }
  const int planes = in_low > kOutliersPerBlock * blocks ? 3 : 2;
  outlier_starts[0] = planes;
  int32_t count = 0;
  for (int64_t b = 0; b < blocks; ++b) {
    const int64_t k = b * kFixedBlockK, chunk = k / kFixedChunkK;
    if (k % kFixedChunkK == 0) outlier_starts[1 + chunk] = count;
    Block c(x + k);
    uint32_t listed = c.lost;
    if (planes == 2 && c.in_low != 0) {
      c.clear(c.in_low);
      c.store_planes(out + 64 * b, out + at.low + 32 * b);
      listed |= c.in_low;
    }
    for (; listed != 0; listed &= listed - 1) {
      const int i = __builtin_ctz(listed);
      outliers[count++] = {x[k + i] * kFixedFactor, static_cast<uint16_t>(k % kFixedChunkK + i),
                           static_cast<uint16_t>(k % kFixedChunkK / kFixedBlockK)};
    }
  }
  outlier_starts[1 + (padded + kFixedChunkK - 1) / kFixedChunkK] = count;
}

// A PackRowFn for every PackedType.
template <class Block>
static void pack_row_or_fixed_point(const PackRowArgs& a) {
  if (a.target.type != PackedType::fixed_point) return pack_row(a);
  PackRowArgs floats = a;
  floats.target.type = PackedType::f32;
  floats.target.data = a.staging;
  pack_row(floats);
  write_fixed_point_row<Block>(a.staging, a.target.padded_n, static_cast<uint8_t*>(a.target.data));
}

}  // namespace
}  // namespace sluice::kernels::cpu
