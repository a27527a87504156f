// SPDX-License-Identifier: Apache-2.0
// The rotary embedding, and the steps around it that turn projected rows into queries and pages.
#include <algorithm>
#include <cmath>

#include "base/bf16.h"
#include "ops/cpu/clones.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/norm.h"
#include "ops/cpu/pages.h"
#include "ops/cpu/parallel.h"
#include "ops/cpu/row.h"

namespace sluice::ops::cpu {

namespace {
struct Bf16Type {
  using Element = bf16_t;
  static float get(Element e) { return bf16_to_float(e); }
  static Element put(float f) { return float_to_bf16(f); }
  static float round(float f) { return round_to_bf16(f); }
};
struct F32Type {
  using Element = float;
  static float get(Element e) { return e; }
  static Element put(float f) { return f; }
  static float round(float f) { return f; }
};

// D rounds each of the two products and their sum, as separate tensor operations do.
template <class D>
__attribute__((always_inline)) inline void rotate_pairs(typename D::Element* __restrict x,
                                                        typename D::Element* __restrict y, const float* c,
                                                        const float* s, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const float a = D::get(x[i]), b = D::get(y[i]);
    x[i] = D::put(D::round(a * c[i]) - D::round(b * s[i]));
    y[i] = D::put(D::round(b * c[i]) + D::round(a * s[i]));
  }
}
SLUICE_CLONES void rotate(bf16_t* x, bf16_t* y, const float* c, const float* s, int64_t n) {
  rotate_pairs<Bf16Type>(x, y, c, s, n);
}
SLUICE_CLONES void rotate(float* x, float* y, const float* c, const float* s, int64_t n) {
  rotate_pairs<F32Type>(x, y, c, s, n);
}

// Pairs that lie side by side are moved apart, rotated and moved back.
template <class Element>
void rotate_interleaved(Element* x, const float* c, const float* s, int64_t pairs) {
  constexpr int64_t kPairs = 64;
  Element first[kPairs], second[kPairs];
  for (int64_t begin = 0; begin < pairs; begin += kPairs) {
    const int64_t n = std::min(kPairs, pairs - begin);
    Element* at = x + 2 * begin;
    for (int64_t i = 0; i < n; ++i) first[i] = at[2 * i], second[i] = at[2 * i + 1];
    rotate(first, second, c + begin, s + begin, n);
    for (int64_t i = 0; i < n; ++i) at[2 * i] = first[i], at[2 * i + 1] = second[i];
  }
}

template <class Element>
void rotate_head(Element* x, const float* c, const float* s, int64_t half, RopeLayout layout) {
  if (layout == RopeLayout::halves)
    rotate(x, x + half, c, s, half);
  else
    rotate_interleaved(x, c, s, half);
}

// Rotates the first 2 * half values at `x`, of type `dtype`. Interleaved pairs stay where they are: q and k turn alike,
// so their products are those of any other order.
void rotate_head(void* x, DType dtype, const RopeAngles& angles, int64_t row, RopeLayout layout) {
  const int64_t half = angles.half;
  const float *c = angles.cosine + row * half, *s = angles.sine + row * half;
  if (dtype == DType::bf16)
    rotate_head(static_cast<bf16_t*>(x), c, s, half, layout);
  else
    rotate_head(static_cast<float*>(x), c, s, half, layout);
}
}  // namespace

void CpuOps::rope_angles(const RopeFrequencies& f, const int32_t* positions, int64_t rows, DType dtype, float* cosine,
                         float* sine) {
  for (int64_t r = 0; r < rows; ++r)
    for (const float inv_freq : f.inv_freq) {
      const float angle = inv_freq * static_cast<float>(positions[r]);
      float c = std::cos(angle) * f.attention_factor, s = std::sin(angle) * f.attention_factor;
      if (dtype == DType::bf16) c = round_to_bf16(c), s = round_to_bf16(s);
      *cosine++ = c;
      *sine++ = s;
    }
}

void CpuOps::norm_rope_store(const Batch& batch, const QkvLayout& layout, const RopeAngles& angles, Matrix qkv,
                             const Pages& keys, const Pages& values) {
  const int64_t dim = layout.head_dim, first_value = (layout.heads + layout.kv_heads) * dim;
  parallel_rows(ctx(), qkv.rows, qkv.cols * 4, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      for (int64_t h = 0; h < layout.heads + layout.kv_heads; ++h) {
        void* head = offset(qkv.row(r), qkv.dtype, h * dim);
        if (const RmsNorm& norm = h < layout.heads ? layout.q_norm : layout.k_norm)
          norm_row(head, qkv.dtype, norm.weight.as<float>(), dim, norm.eps, head, qkv.dtype);
        if (layout.rotary) rotate_head(head, qkv.dtype, angles, r, RopeLayout::halves);
      }
      write_page_row(offset(qkv.row(r), qkv.dtype, layout.heads * dim), qkv.dtype, batch.kv_slots[r], keys);
      write_page_row(offset(qkv.row(r), qkv.dtype, first_value), qkv.dtype, batch.kv_slots[r], values);
    }
  });
}

void CpuOps::mla_norm_rope_store(const Batch& batch, const MlaShape& shape, RopeLayout layout, const RopeAngles& angles,
                                 const RmsNorm& norm, Matrix q, Matrix latent, const Pages& keys) {
  parallel_rows(ctx(), latent.rows, (q.cols + latent.cols) * 2, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      for (int64_t h = 0; h < shape.heads; ++h)
        rotate_head(offset(q.row(r), q.dtype, h * shape.query() + shape.nope), q.dtype, angles, r, layout);
      void* row = latent.row(r);
      norm_row(row, latent.dtype, norm.weight.as<float>(), shape.latent, norm.eps, row, latent.dtype);
      rotate_head(offset(row, latent.dtype, shape.latent), latent.dtype, angles, r, layout);
      write_page_row(row, latent.dtype, batch.kv_slots[r], keys);
    }
  });
}

}  // namespace sluice::ops::cpu
