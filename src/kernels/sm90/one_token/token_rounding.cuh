// SPDX-License-Identifier: Apache-2.0
// Rounds a row to the words that its products read.
#pragma once

#include "kernels/sm90/few_rows/load.cuh"
#include "kernels/sm90/one_token/shared.cuh"

namespace sluice::sm90 {

// What the pieces of a row are rounded with, and the factor of its sums.
struct TokenRounding {
  format::Nvfp4Global global;
  float divisor, factor;
  // amax: of the row, as bits; read by formats that scale rows.
  __device__ TokenRounding(const InputScale& s, Round round, uint32_t amax)
      : global(s.global), divisor(s.inverse), factor(s.factor) {
    if (round == Round::fp8_token) {
      divisor = group_scale(amax);
      factor *= divisor;
    } else if (round == Round::nvfp4_token) {
      global = format::nvfp4_row_global(format::amax_value(amax));
      factor *= global.decode;
    }
  }
};

// Eight neighbouring columns, piece `piece` of a k-block whose words are `to`. Lanes have neighbouring pieces, and all
// of a group's call together. Returns the scale of 128 columns, where the format has it.
template <WeightOperand op>
__device__ __forceinline__ float store_rounded(const TokenRounding& f, const InputScale& s, Round round,
                                               const float (&v)[8], bool real, uint32_t* to, int piece) {
  const int group = op == WeightOperand::bf16 ? 0 : group_columns(round);
  const uint32_t amax = group != 0 ? amax_lanes(amax8(v), group / 8) : 0;
  const float of_group = block_scaled(op) ? group_scale(amax) : 1.0f;
  uint32_t words[4];
  if constexpr (is_fp8(op)) {
    const uint2 codes = rounded_e4m3(round, v, block_scaled(op) ? of_group : f.divisor);
    words[0] = ptx::cvt_f16x2_e4m3x2(static_cast<uint16_t>(codes.x));
    words[1] = ptx::cvt_f16x2_e4m3x2(static_cast<uint16_t>(codes.x >> 16));
    words[2] = ptx::cvt_f16x2_e4m3x2(static_cast<uint16_t>(codes.y));
    words[3] = ptx::cvt_f16x2_e4m3x2(static_cast<uint16_t>(codes.y >> 16));
  } else {
    const uint4 r = rounded_bf16(op == WeightOperand::bf16 ? Round::plain : round, v, amax, f.global, s.inverse,
                                 block_scaled(op) ? of_group : f.divisor);
    words[0] = r.x, words[1] = r.y, words[2] = r.z, words[3] = r.w;
  }
  if (real) {
#pragma unroll
    for (int i = 0; i < 4; ++i) to[token_word<op>(piece, i)] = words[i];
  }
  return of_group;
}

}  // namespace sluice::sm90
