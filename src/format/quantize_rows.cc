// SPDX-License-Identifier: Apache-2.0
#include "format/quantize_rows.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/math.h"
#include "format/quantize.h"

namespace sluice::format {

namespace {

constexpr bool is_fp4(InputFormat f) { return f == InputFormat::nvfp4 || f == InputFormat::nvfp4_token; }

// The factors of a whole row, before its groups are looked at.
struct RowFactors {
  float scale = 1.0f;  // decode factor, as QuantRows::row_scales
  float inverse = 1.0f;
  Nvfp4Global global;
};

RowFactors row_factors(InputFormat f, const float* x, int64_t cols, float input_scale, bool encodes = false) {
  RowFactors r;
  switch (f) {
    case InputFormat::fp8_static:
      r.scale = input_scale;
      r.inverse = fp8_static_inverse(input_scale);
      break;
    case InputFormat::fp8_token:
      r.scale = fp8_scale(amax_of(x, cols));
      break;
    case InputFormat::nvfp4:
      r.global = encodes ? nvfp4_encode(input_scale) : nvfp4_global(input_scale);
      r.scale = encodes ? r.global.decode : input_scale;
      break;
    case InputFormat::nvfp4_token:
      r.global = nvfp4_row_global(amax_of(x, cols));
      r.scale = r.global.decode;
      break;
    default:
      break;
  }
  return r;
}

float e2m1_at(const uint8_t* packed, int64_t i) { return e2m1_to_float(packed[i / 2] >> (i % 2 * 4) & 15); }

}  // namespace

void check_input_scale(InputFormat f, float input_scale) {
  check(!is_static(f) || (std::isfinite(input_scale) && input_scale >= FLT_MIN),
        "the input scale of {} is {}; a positive, normal, finite float is needed", name_of(kInputFormats, f),
        input_scale);
}

QuantRows quantize_rows(InputFormat f, const float* x, int64_t rows, int64_t cols, float input_scale, bool encodes) {
  check(f != InputFormat::plain, "input format plain has no codes; rows in it are used as they are");
  check_input_scale(f, input_scale);
  QuantRows q;
  q.format = f;
  q.rows = rows;
  q.cols = cols;
  const int group = group_of(f);
  const int64_t groups = group ? ceil_div<int64_t>(cols, group) : 0;
  const int64_t row_bytes = is_fp4(f) ? ceil_div<int64_t>(cols, 2) : cols;
  q.codes.resize(static_cast<size_t>(rows * row_bytes));
  if (f == InputFormat::fp8_group)
    q.group_scales.resize(static_cast<size_t>(rows * groups));
  else if (group)
    q.scales.resize(static_cast<size_t>(rows * groups));
  const bool row_scaled = f != InputFormat::fp8_group && f != InputFormat::mxfp8;
  if (row_scaled) q.row_scales.resize(static_cast<size_t>(rows));

  for (int64_t t = 0; t < rows; ++t) {
    const float* row = x + t * cols;
    uint8_t* codes = q.codes.data() + t * row_bytes;
    const RowFactors r = row_factors(f, row, cols, input_scale, encodes);
    if (row_scaled) q.row_scales[static_cast<size_t>(t)] = r.scale;
    if (f == InputFormat::fp8_static)
      for (int64_t k = 0; k < cols; ++k) codes[k] = fp8_static_code(row[k], r.inverse);
    if (f == InputFormat::fp8_token)
      for (int64_t k = 0; k < cols; ++k) codes[k] = fp8_code(row[k], r.scale);
    for (int64_t g = 0; g < groups; ++g) {
      const int64_t begin = g * group;
      const int n = static_cast<int>(std::min<int64_t>(group, cols - begin));
      const auto at = static_cast<size_t>(t * groups + g);
      if (f == InputFormat::fp8_group)
        q.group_scales[at] = quantize_group_fp8(row + begin, n, codes + begin);
      else if (f == InputFormat::mxfp8)
        q.scales[at] = quantize_group_mxfp8(row + begin, n, codes + begin);
      else
        q.scales[at] = quantize_group_nvfp4(row + begin, n, r.global, codes + begin / 2);
    }
  }
  return q;
}

void dequantize_rows(const QuantRows& q, float* out) {
  const int group = group_of(q.format);
  const int64_t groups = group ? ceil_div<int64_t>(q.cols, group) : 0;
  const int64_t row_bytes = is_fp4(q.format) ? ceil_div<int64_t>(q.cols, 2) : q.cols;
  for (int64_t t = 0; t < q.rows; ++t) {
    const uint8_t* codes = q.codes.data() + t * row_bytes;
    const float row_scale = q.row_scales.empty() ? 1.0f : q.row_scales[static_cast<size_t>(t)];
    for (int64_t k = 0; k < q.cols; ++k) {
      const auto at = static_cast<size_t>(group ? t * groups + k / group : 0);
      float v = is_fp4(q.format) ? e2m1_at(codes, k) : e4m3_to_float(codes[k]);
      if (q.format == InputFormat::fp8_group)
        v *= q.group_scales[at];
      else if (q.format == InputFormat::mxfp8)
        v *= e8m0_to_float(q.scales[at]);
      else if (group)
        v *= e4m3_to_float(q.scales[at]);
      out[t * q.cols + k] = v * row_scale;
    }
  }
}

void round_row(InputFormat f, float* x, int64_t cols, float input_scale) {
  if (f == InputFormat::plain) return;
  check_input_scale(f, input_scale);
  const RowFactors r = row_factors(f, x, cols, input_scale);
  if (f == InputFormat::fp8_static) {
    for (int64_t k = 0; k < cols; ++k) x[k] = e4m3_to_float(fp8_static_code(x[k], r.inverse)) * r.scale;
    return;
  }
  if (f == InputFormat::fp8_token) {
    for (int64_t k = 0; k < cols; ++k) x[k] = e4m3_to_float(fp8_code(x[k], r.scale)) * r.scale;
    return;
  }
  const int group = group_of(f);
  uint8_t codes[128];
  for (int64_t begin = 0; begin < cols; begin += group) {
    const int n = static_cast<int>(std::min<int64_t>(group, cols - begin));
    float* v = x + begin;
    if (f == InputFormat::fp8_group) {
      const float scale = quantize_group_fp8(v, n, codes);
      for (int i = 0; i < n; ++i) v[i] = e4m3_to_float(codes[i]) * scale;
    } else if (f == InputFormat::mxfp8) {
      const float scale = e8m0_to_float(quantize_group_mxfp8(v, n, codes));
      for (int i = 0; i < n; ++i) v[i] = e4m3_to_float(codes[i]) * scale;
    } else {
      const float scale = e4m3_to_float(quantize_group_nvfp4(v, n, r.global, codes));
      for (int i = 0; i < n; ++i) v[i] = e2m1_at(codes, i) * scale * r.scale;
    }
  }
}

}  // namespace sluice::format
