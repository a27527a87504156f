// SPDX-License-Identifier: Apache-2.0

#include <algorithm>

#include "base/math.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/parallel.h"
#include "ops/cpu/row.h"
#include "ops/cpu/tile.h"

namespace sluice::ops::cpu {

namespace {
// `count` rows of kv_b as float32, `stride` apart, zeros after the latent width.
void read_rows(const Tensor& kv_b, int64_t first, int64_t count, float* out, int64_t stride) {
  const int64_t n = kv_b.dim(1);
  for (int64_t i = 0; i < count; ++i) {
    load(offset(kv_b.data(), kv_b.dtype(), (first + i) * n), kv_b.dtype(), out + i * stride, n);
    std::fill(out + i * stride + n, out + (i + 1) * stride, 0.0f);
  }
}
}  // namespace

void CpuOps::mla_absorb(const MlaShape& shape, const Tensor& kv_b, ConstMatrix q, Matrix out) {
  Workspace::Scope scope(workspace());
  const int64_t stride = round_up<int64_t>(shape.latent, 16);
  const int64_t floats = shape.nope * (stride + 1) + stride + 64;
  float* memory = workspace().take<float>(floats * ctx().pool.size());
  parallel(ctx(), shape.heads, q.rows * shape.heads * shape.nope * shape.latent, [&](int64_t h, int worker) {
    float* rows = memory + worker * floats;
    float* acc = rows + shape.nope * stride;
    float* head = acc + stride;
    read_rows(kv_b, h * (shape.nope + shape.value), shape.nope, rows, stride);
    for (int64_t r = 0; r < q.rows; ++r) {
      const void* src = offset(q.row(r), q.dtype, h * shape.query());
      auto* dst = static_cast<float*>(out.row(r)) + h * shape.cached();
      load(src, q.dtype, head, shape.nope);
      std::fill_n(acc, stride, 0.0f);
      mix_rows(head, rows, stride, shape.nope, stride, 0.0f, acc);
      std::copy_n(acc, shape.latent, dst);
      load(offset(src, q.dtype, shape.nope), q.dtype, dst + shape.latent, shape.rope);
    }
  });
}

void CpuOps::mla_expand(const MlaShape& shape, const Tensor& kv_b, ConstMatrix mixed, Matrix out) {
  Workspace::Scope scope(workspace());
  const int64_t stride = round_up<int64_t>(shape.latent, 16), values = round_up<int64_t>(shape.value, 4);
  const int64_t floats = round_up<int64_t>(values * (stride + 1) + stride, 16);
  float* memory = workspace().take<float>(floats * ctx().pool.size());
  parallel(ctx(), shape.heads, mixed.rows * shape.heads * shape.value * shape.latent, [&](int64_t h, int worker) {
    float* rows = memory + worker * floats;
    float* latent = rows + values * stride;
    float* result = latent + stride;
    read_rows(kv_b, h * (shape.nope + shape.value) + shape.nope, shape.value, rows, stride);
    std::fill(rows + shape.value * stride, rows + values * stride, 0.0f);
    std::fill_n(latent, stride, 0.0f);
    for (int64_t r = 0; r < mixed.rows; ++r) {
      std::copy_n(static_cast<const float*>(mixed.row(r)) + h * shape.latent, shape.latent, latent);
      dot_rows(latent, rows, stride, shape.value, 1.0f, result);
      store(result, offset(out.row(r), out.dtype, h * shape.value), out.dtype, shape.value);
    }
  });
}

}  // namespace sluice::ops::cpu
