// SPDX-License-Identifier: Apache-2.0
#include "ops/cpu/row.h"

#include <bit>
#include <cstring>

#include "base/bf16.h"
#include "format/e4m3.h"
#include "ops/cpu/clones.h"
#include "ops/cpu/exp.h"

namespace sluice::ops::cpu {

namespace {
SLUICE_CLONES void widen(const bf16_t* src, float* dst, int64_t n) {
  for (int64_t i = 0; i < n; ++i) dst[i] = bf16_to_float(src[i]);
}
SLUICE_CLONES void narrow(const float* src, bf16_t* dst, int64_t n) {
  for (int64_t i = 0; i < n; ++i) dst[i] = float_to_bf16(src[i]);
}
SLUICE_CLONES void widen_e4m3(const uint8_t* src, float* dst, int64_t n) {
  for (int64_t i = 0; i < n; ++i) dst[i] = format::e4m3_to_float(src[i]);
}
SLUICE_CLONES void narrow_e4m3(const float* src, uint8_t* dst, int64_t n) {
  for (int64_t i = 0; i < n; ++i) dst[i] = format::float_to_e4m3(src[i]);
}
SLUICE_CLONES void round_bf16(float* x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) x[i] = round_to_bf16(x[i]);
}
SLUICE_CLONES void add_squares(float* lanes, const float* x, int64_t n) {
  float s[16];
  std::memcpy(s, lanes, sizeof s);
  int64_t i = 0;
  for (; i + 16 <= n; i += 16)
    for (int j = 0; j < 16; ++j) s[j] += x[i + j] * x[i + j];
  for (int j = 0; i + j < n; ++j) s[j] += x[i + j] * x[i + j];
  std::memcpy(lanes, s, sizeof s);
}
}  // namespace

void load(const void* src, DType dtype, float* dst, int64_t n) {
  if (dtype == DType::bf16)
    widen(static_cast<const bf16_t*>(src), dst, n);
  else if (dtype == DType::e4m3)
    widen_e4m3(static_cast<const uint8_t*>(src), dst, n);
  else
    std::memcpy(dst, src, static_cast<size_t>(n) * sizeof(float));
}

void store(const float* src, void* dst, DType dtype, int64_t n) {
  if (dtype == DType::bf16)
    narrow(src, static_cast<bf16_t*>(dst), n);
  else if (dtype == DType::e4m3)
    narrow_e4m3(src, static_cast<uint8_t*>(dst), n);
  else
    std::memcpy(dst, src, static_cast<size_t>(n) * sizeof(float));
}

SLUICE_CLONES void widen_codes(const uint8_t* src, bf16_t* dst, int64_t n) {
  for (int64_t i = 0; i < n; ++i)
    dst[i] = static_cast<bf16_t>(std::bit_cast<uint32_t>(format::e4m3_to_float(src[i])) >> 16);
}

void round_to(DType dtype, float* x, int64_t n) {
  if (dtype == DType::bf16) round_bf16(x, n);
}

const void* offset(const void* row, DType dtype, int64_t i) {
  return static_cast<const std::byte*>(row) + i * bytes_of(dtype);
}
void* offset(void* row, DType dtype, int64_t i) { return static_cast<std::byte*>(row) + i * bytes_of(dtype); }

void SquareSum::add(const float* x, int64_t n) { add_squares(lanes, x, n); }

float SquareSum::total() const {
  float s[16];
  std::memcpy(s, lanes, sizeof s);
  for (int width = 8; width > 0; width /= 2)
    for (int j = 0; j < width; ++j) s[j] += s[j + width];
  return s[0];
}

SLUICE_CLONES void multiply(const float* a, const float* b, float* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = a[i] * b[i];
}
SLUICE_CLONES void add(const float* a, const float* b, float* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = a[i] + b[i];
}
SLUICE_CLONES void scale(const float* a, float factor, float* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = a[i] * factor;
}
SLUICE_CLONES void silu(const float* x, float* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = x[i] / (1.0f + exp_float(-x[i]));
}
SLUICE_CLONES void relu2(const float* x, float* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const float r = x[i] > 0.0f ? x[i] : 0.0f;
    out[i] = r * r;
  }
}

}  // namespace sluice::ops::cpu
