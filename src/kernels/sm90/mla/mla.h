// SPDX-License-Identifier: Apache-2.0
// Latent attention: the key half of kv_b moves to the query. (The value half is launch_float_linear.)
#pragma once

#include "kernels/sm90/device.h"
#include "kernels/sm90/rows.h"

namespace sluice::sm90 {

struct MlaAbsorbArgs {
  ConstRowsView q;   // D [rows, heads * (nope + rope)]
  const void* kv_b;  // [heads * (nope + value), latent]: for each head `nope` key rows first; float32 or bfloat16
  bool kv_b_f32;
  RowsView out;  // [rows, heads * (latent + rope)]: [q Wk | rotary part]
  int64_t rows;
  int heads, nope, rope, value, latent;  // nope <= kMaxNope
};
inline constexpr int kMaxNope = 512;
void launch_mla_absorb(const MlaAbsorbArgs& args, Stream stream, bool pdl);

}  // namespace sluice::sm90
