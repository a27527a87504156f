// SPDX-License-Identifier: Apache-2.0
#include "format/quantize_weights.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/math.h"
#include "format/quantize.h"

namespace sluice::format {

namespace {

struct Groups {
  int64_t n, k;        // size of one group
  int64_t rows, cols;  // how many groups there are
  int64_t count() const { return rows * cols; }
};

Groups groups_of(Format f, int64_t n, int64_t k) {
  const FormatInfo i = info(f);
  if (i.scale == ScaleType::none) return {n, k, 0, 0};
  const int64_t gn = i.group_n ? i.group_n : std::max<int64_t>(n, 1);
  const int64_t gk = i.group_k ? i.group_k : std::max<int64_t>(k, 1);
  return {gn, gk, i.group_n ? ceil_div(n, gn) : 1, i.group_k ? ceil_div(k, gk) : 1};
}

// One float scale for a rectangle of e4m3 codes.
void quantize_rectangle(const float* w, int64_t stride, int64_t n, int64_t k, float scale, uint8_t* codes) {
  for (int64_t r = 0; r < n; ++r)
    for (int64_t c = 0; c < k; ++c) codes[r * stride + c] = fp8_code(w[r * stride + c], scale);
}

float amax_of_rectangle(const float* w, int64_t stride, int64_t n, int64_t k) {
  uint32_t bits = 0;
  for (int64_t r = 0; r < n; ++r)
    for (int64_t c = 0; c < k; ++c) bits = amax_bits(bits, w[r * stride + c]);
  return amax_value(bits);
}

void quantize_fp8(Format f, const float* w, int64_t n, int64_t k, uint8_t* codes, float* scales,
                  std::optional<float> given_amax) {
  const Groups g = groups_of(f, n, k);
  for (int64_t r = 0; r < g.rows; ++r)
    for (int64_t c = 0; c < g.cols; ++c) {
      const int64_t at = r * g.n * k + c * g.k;
      const int64_t height = std::min(g.n, n - r * g.n), width = std::min(g.k, k - c * g.k);
      const float amax =
          f == Format::fp8_tensor && given_amax ? *given_amax : amax_of_rectangle(w + at, k, height, width);
      const float scale = f == Format::fp8_block ? fp8_block_scale(amax) : fp8_scale(amax);
      scales[r * g.cols + c] = scale;
      quantize_rectangle(w + at, k, height, width, scale, codes + at);
    }
}

}  // namespace

int64_t code_bytes(Format f, int64_t n, int64_t k) {
  check(info(f).bits != 4 || k % 2 == 0, "a {} matrix has {} columns; 4-bit codes need an even number", info(f).name,
        k);
  return n * k * info(f).bits / 8;
}

int64_t scale_count(Format f, int64_t n, int64_t k) { return groups_of(f, n, k).count(); }

void quantize_weight(Format f, const float* w, int64_t n, int64_t k, void* codes, void* scales, float* global,
                     std::optional<float> given_amax) {
  code_bytes(f, n, k);  // refuses an odd number of 4-bit columns
  const int64_t group = info(f).group_k, groups = group > 1 ? ceil_div(k, group) : 0;
  auto* out = static_cast<uint8_t*>(codes);
  auto* bytes = static_cast<uint8_t*>(scales);
  switch (f) {
    case Format::bf16:
      for (int64_t i = 0; i < n * k; ++i) static_cast<bf16_t*>(codes)[i] = float_to_bf16(w[i]);
      return;
    case Format::fp8_tensor:
    case Format::fp8_channel:
    case Format::fp8_block:
      return quantize_fp8(f, w, n, k, out, static_cast<float*>(scales), given_amax);
    case Format::mxfp8:
    case Format::mxfp4:
    case Format::nvfp4:
      break;
  }
  Nvfp4Global g;
  if (f == Format::nvfp4) {
    *global = nvfp4_global_scale(given_amax ? *given_amax : amax_of(w, n * k));
    g = nvfp4_global(*global);
  }
  for (int64_t r = 0; r < n; ++r)
    for (int64_t c = 0; c < groups; ++c) {
      const float* x = w + r * k + c * group;
      const int count = static_cast<int>(std::min(group, k - c * group));
      const int64_t at = r * k + c * group;
      bytes[r * groups + c] = f == Format::mxfp8   ? quantize_group_mxfp8(x, count, out + at)
                              : f == Format::mxfp4 ? quantize_group_mxfp4(x, count, out + at / 2)
                                                   : quantize_group_nvfp4(x, count, g, out + at / 2);
    }
}

void dequantize_weight(Format f, const void* codes, const void* scales, float global, int64_t n, int64_t k,
                       float* out) {
  const FormatInfo i = info(f);
  if (i.scale == ScaleType::none) {
    for (int64_t at = 0; at < n * k; ++at) out[at] = bf16_to_float(static_cast<const bf16_t*>(codes)[at]);
    return;
  }
  const Groups g = groups_of(f, n, k);
  const auto* bytes = static_cast<const uint8_t*>(codes);
  for (int64_t r = 0; r < n; ++r)
    for (int64_t c = 0; c < k; ++c) {
      const int64_t at = r * k + c, s = r / g.n * g.cols + c / g.k;
      const float code = i.bits == 4 ? e2m1_to_float(bytes[at / 2] >> (at % 2 * 4) & 15) : e4m3_to_float(bytes[at]);
      const float scale = i.scale == ScaleType::f32    ? static_cast<const float*>(scales)[s]
                          : i.scale == ScaleType::e8m0 ? e8m0_to_float(static_cast<const uint8_t*>(scales)[s])
                                                       : e4m3_to_float(static_cast<const uint8_t*>(scales)[s]);
      out[at] = i.global_scale ? code * scale * global : code * scale;
    }
}

}  // namespace sluice::format
