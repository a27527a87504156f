// SPDX-License-Identifier: Apache-2.0
// Latent attention: the key half of kv_b moves to the query, the value half to the result. bfloat16 in rows of whole 16
// bytes is multiplied on tensor cores (head_product.h), everything else in float32. Which one runs depends on shapes
// and types alone, and each sum has one order, whatever the number of rows.
#pragma once

#include "kernels/sm90/device.h"
#include "kernels/sm90/rows.h"

namespace sluice::sm90 {

inline constexpr int kMaxNope = 512;

struct MlaWeights {
  const void* kv_b;  // [heads * (nope + value), latent]: for each head `nope` key rows first; float32 or bfloat16
  bool f32;
  int heads, nope, rope, value, latent;  // nope <= kMaxNope
};

struct MlaAbsorbArgs {
  MlaWeights weights;
  ConstRowsView q;  // D [rows, heads * (nope + rope)]
  RowsView out;     // [rows, heads * (latent + rope)]: [q Wk | rotary part]
  int64_t rows;
  // Row i of `out` is that of row q_rows[i] of q; null: of row i. Needs mla_on_tensor_cores.
  const int32_t* q_rows = nullptr;
};
void launch_mla_absorb(const MlaAbsorbArgs& args, Stream stream, bool pdl);

struct MlaExpandArgs {
  MlaWeights weights;
  ConstRowsView mixed;  // [rows, heads * latent]
  RowsView out;         // D [rows, heads * value]
  int64_t rows;
  const int32_t* out_rows = nullptr;  // row i of `mixed` gives this row of `out`; as q_rows
};
void launch_mla_expand(const MlaExpandArgs& args, Stream stream, bool pdl);

// Whether tensor cores take these rows: D's of q and of the results, both of bfloat16.
bool mla_on_tensor_cores(const MlaWeights& weights, ConstRowsView in, ConstRowsView out);

}  // namespace sluice::sm90
