// SPDX-License-Identifier: Apache-2.0
// Multi-head latent attention in its absorbed form. The cache holds one row [latent | rotary key] a token; the key half
// of kv_b_proj moves to the query, the value half to the output:
//   q . (Wk latent) = (q Wk) . latent,   sum p (Wv latent) = Wv (sum p latent).
// Always this form, whatever the number of rows: an expanded one for long prompts needs fewer products (192 + 128
// against 576 + 512 a key and head in DeepSeek-V3), but two forms round differently, and speculative verification must
// give the bits of plain decoding.
#pragma once

#include "base/context.h"
#include "ops/matrix.h"
#include "ops/workspace.h"
#include "tensor/tensor.h"

namespace sluice::ops {

struct MlaShape {
  int64_t heads = 0, nope = 0, rope = 0, value = 0, latent = 0;
  int64_t query() const { return nope + rope; }
  int64_t cached() const { return latent + rope; }
};

// kv_b bf16 or f32 [heads * (nope + value), latent], for each head `nope` key rows, then `value` rows.
// q D [rows, heads * (nope + rope)], rotated -> out f32 [rows, heads * (latent + rope)]: [q Wk | rotary part].
void mla_absorb(Context& ctx, Workspace& workspace, const MlaShape& shape, const Tensor& kv_b, ConstMatrix q,
                Matrix out);

// mixed f32 [rows, heads * latent] -> out D [rows, heads * value].
void mla_expand(Context& ctx, Workspace& workspace, const MlaShape& shape, const Tensor& kv_b, ConstMatrix mixed,
                Matrix out);

}  // namespace sluice::ops
