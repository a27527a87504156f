// SPDX-License-Identifier: Apache-2.0
// What the kernels are templates over: a vector policy V, which is an instruction set, and a coding C, which is a
// weight format. Weights then come from a source: packed codes (V and C), or values that were decoded to L1 (V alone).
//
// A vector policy (Scalar, Avx2, AvxVnni, Avx512, Avx512Bf16 in the files beside this one) has these members:
//   F, W, X               16 floats, one per output n of a panel; 16 weights or pairs of them; one broadcast input
//   Raw<bits>             64 bytes of codes after the work that all their steps share
//   kKPerStep             k per 32-bit broadcast of an input row: 1 (float) or 2 (a pair of bfloat16)
//   kTileM, kTilePanels   the largest register tile: input rows by panels
//   kTwoPanelM            if kTilePanels is 1: up to this many rows take two panels at once; else 0
//   kInterleavedPrefetch  see prefetch.h
//   zero, load, store, add, multiply, multiply_add(W, X, F), multiply_add_f32(F, F, F), broadcast_x, broadcast_f32
//   load_weights, store_weights            decoded weights in scratch memory
//   scale_e8m0, scale_e4m3                 16 block scales as floats; e4m3 gives the value / 256 (kE4m3F16Factor)
//   load_codes<bits>, decode<bits, step>   64 bytes of a panel; the weights of k = step * kKPerStep in them
//   prefetch_near, prefetch_far            to L1, to L2
// Policies with integer dots (micro/nvfp4_dot.h, micro/mxfp4_dot.h) have these, too:
//   Bytes, Ints           64 bytes, four per output of a panel (a quad); 16 int32
//   load_bytes, store_bytes, load_ints, store_ints, shift_left<bits>, negative, to_floats, add_bytes
//   look_up_nibbles       table[low nibble] and table[high nibble] of every byte
//   broadcast_quad        four bytes of an input row, for every output
//   dot_16                offset + sum of w[i] * x over 16 k, as floats: unsigned bytes w up to 24, signed bytes x up
//   to
//                         12, four per 32-bit word of x
// and for MXFP4:
//   kFixedTileM, kFixedTilePanels   the largest register tile
//   kFixedRegisterSums    up to this many outputs of a tile stay in registers; more lie in L1
//   ByteSums              sums of products of quads, unsigned inputs by signed weights up to 12
//   start_sums, add_products, value_of
//   finish_four_quads     to call after every four add_products(), and before value_of()
//   sum_of_quads, byte_of_quads     of each quad, its sum and one of its bytes, as Ints
//   keep                  the value; the compiler does not load it again for another use
#pragma once

#include "kernels/cpu/micro/gemm_args.h"
#include "kernels/cpu/micro/inline.h"

namespace sluice::kernels::cpu {
namespace {

enum class Scales { none, f32, e8m0, e4m3 };

template <int kBits_, int kGroup_, Scales kScales_>
struct Coding {
  static constexpr int kBits = kBits_;    // per code
  static constexpr int kGroup = kGroup_;  // k per block scale; 0: no block scales
  static constexpr Scales kScales = kScales_;
  static constexpr int kBlockK = 64 * 8 / (kBits * kPanelN);  // k in a panel's 64-byte block
  // Bytes of block scales per panel and group.
  static constexpr int kScaleBytes = kScales == Scales::none ? 0 : kScales == Scales::f32 ? 4 : kPanelN;
};
using Bf16Coding = Coding<16, 0, Scales::none>;
using E4m3Coding = Coding<8, 0, Scales::none>;
using E4m3BlockCoding = Coding<8, 128, Scales::f32>;
using E4m3MxCoding = Coding<8, 32, Scales::e8m0>;
using E2m1NvCoding = Coding<4, 16, Scales::e4m3>;
using E2m1MxCoding = Coding<4, 32, Scales::e8m0>;

// Weights from packed codes.
template <class V, class C>
struct PackedSource {
  static constexpr int kBits = C::kBits;
  static constexpr int kGroup = C::kGroup;
  static constexpr int kSteps = C::kBlockK / V::kKPerStep;  // per block
  static constexpr int kBlockK = C::kBlockK;
  static constexpr int kScaleBytes = C::kScaleBytes;
  static constexpr bool kDecoded = false;
  using Raw = typename V::template Raw<C::kBits>;
  SLUICE_INLINE Raw load(const uint8_t* p) { return V::template load_codes<C::kBits>(p); }
  template <int kStep>
  SLUICE_INLINE typename V::W weights(const Raw& raw) {
    return V::template decode<C::kBits, kStep>(raw);
  }
  SLUICE_INLINE typename V::F scale(const uint8_t* p) {
    if constexpr (C::kScales == Scales::f32)
      return V::broadcast_f32(p);
    else if constexpr (C::kScales == Scales::e8m0)
      return V::scale_e8m0(p);
    else
      return V::scale_e4m3(p);
  }
};

// Weights decoded to scratch memory: per step, 64 bytes per panel; per group, 16 scales as floats per panel.
template <class V, int kGroup_>
struct DecodedSource {
  static constexpr int kBits = 0;
  static constexpr int kGroup = kGroup_;
  static constexpr int kSteps = 1;
  static constexpr int kBlockK = V::kKPerStep;
  static constexpr int kScaleBytes = 64;
  static constexpr bool kDecoded = true;
  using Raw = typename V::W;
  SLUICE_INLINE Raw load(const uint8_t* p) { return V::load_weights(p); }
  template <int kStep>
  SLUICE_INLINE typename V::W weights(const Raw& raw) {
    return raw;
  }
  SLUICE_INLINE typename V::F scale(const uint8_t* p) { return V::load(reinterpret_cast<const float*>(p)); }
};

// Whether every register tile decodes its weights itself. Otherwise a chunk of k is decoded to L1 once, for all tiles
// of more than a few rows. Tiles decode where vdpbf16ps does the products (Zen 4 and 5): dots take two of the four
// vector ports, so the shifts and look-ups of decoding run between them on the other two. Storing decoded weights does
// not: a 64-byte store takes the time of 1.5 dots from the dots. bf16 weights need no decoding.
template <class V>
constexpr bool decodes_in_every_tile() {
  return V::kKPerStep == 2;
}

}  // namespace
}  // namespace sluice::kernels::cpu
