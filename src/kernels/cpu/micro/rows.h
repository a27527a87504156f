// SPDX-License-Identifier: Apache-2.0
// Row operations, written as plain loops that the compiler vectorises for the file that includes this: rounding inputs
// to their number format, activations, the weighted sum. No branches in inner loops, no library calls (a call would
// end vectorisation). Same bits as format/quantize.h: tests/kernels/cpu compares them value by value.
#pragma once

#include "kernels/cpu/micro/micro.h"

namespace sluice::kernels::cpu {
namespace {

inline constexpr float kFloatMax = 3.40282346638528859812e+38f, kFloatMin = 1.17549435082228750797e-38f;

static inline uint32_t bits_of(float f) { return __builtin_bit_cast(uint32_t, f); }
static inline float float_of(uint32_t u) { return __builtin_bit_cast(float, u); }

static inline uint16_t bf16_of(float f) {
  const uint32_t u = bits_of(f);
  const uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  return static_cast<uint16_t>((u & 0x7fffffffu) > 0x7f800000u ? (u >> 16) | 0x40u : rounded);
}
static inline float float_of_bf16(uint16_t b) { return float_of(static_cast<uint32_t>(b) << 16); }

// The nearest e4m3 value, ties to even, saturating at 448; NaN stays.
static inline float round_e4m3(float f) {
  const uint32_t u = bits_of(f), a = u & 0x7fffffffu;
  const uint32_t capped = a < 0x43e00000u ? a : 0x43e00000u;
  const uint32_t normal = (capped + 0x7ffffu + ((capped >> 20) & 1u)) & 0xfff00000u;
  const uint32_t tiny = bits_of((float_of(capped) + 16384.0f) - 16384.0f);  // to a multiple of 2^-9
  const uint32_t value = capped < 0x3c800000u ? tiny : normal;
  return float_of((u & 0x80000000u) | (a > 0x7f800000u ? a : value));
}

// The nearest e2m1 value, ties to the even code, saturating at 6; NaN gives +6.
static inline float round_e2m1(float f) {
  const uint32_t u = bits_of(f), a = u & 0x7fffffffu;
  const uint32_t capped = a < 0x40c00000u ? a : 0x40c00000u;
  const uint32_t normal = (capped + 0x1fffffu + ((capped >> 22) & 1u)) & 0xffc00000u;
  const uint32_t tiny = bits_of((float_of(capped) + 4194304.0f) - 4194304.0f);  // to a multiple of 0.5
  const uint32_t value = capped < 0x3f800000u ? tiny : normal;
  return float_of((a > 0x7f800000u ? 0u : u & 0x80000000u) | value);
}

// Infinity counts as FLT_MAX; NaN is larger than all and stays.
static inline float amax(const float* x, int64_t n) {
  uint32_t m = 0;
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t a = bits_of(x[i]) & 0x7fffffffu;
    m = a > m ? a : m;
  }
  return float_of(m == 0x7f800000u ? 0x7f7fffffu : m);
}

static inline float at_most_max(float x) { return x > kFloatMax ? kFloatMax : x; }

static inline float fp8_scale(float largest) {
  const float s = largest / 448.0f;
  return s < kFloatMin ? kFloatMin : s;
}

static inline uint32_t e8m0_up(float f) {
  const uint32_t u = bits_of(f) & 0x7fffffffu, exponent = u >> 23;
  if (u > 0x7f800000u) return 255u;
  if (exponent >= 254u) return 254u;
  if (exponent == 0) return u > 0x400000u ? 1u : 0u;
  return exponent + ((u & 0x7fffffu) != 0 ? 1u : 0u);
}

// Values (code * scale, exact) of one group under a power of two.
static inline void round_mx(float* x, int64_t n) {
  const uint32_t b = e8m0_up(amax(x, n) * (1.0f / 448.0f));
  const float inverse = b == 255u   ? float_of(0x7fc00000u)
                        : b == 254u ? float_of(0x00400000u)
                        : b == 0u   ? 0.0f
                                    : float_of((254u - b) << 23);
  const float scale = b == 255u ? float_of(0x7fc00000u) : float_of(b << 23);
  for (int64_t i = 0; i < n; ++i) x[i] = round_e4m3(x[i] * inverse) * scale;
}

struct Nvfp4Factors {
  float encode, decode;
};

// x becomes e2m1 values; returns the block scale that they are multiplied by.
static inline float round_nvfp4(float* x, int64_t n, Nvfp4Factors g) {
  const float scale = round_e4m3(amax(x, n) * (g.encode * (1.0f / 6.0f)));
  const float inverse = at_most_max(1.0f / (scale * g.decode));
  for (int64_t i = 0; i < n; ++i) x[i] = round_e2m1(x[i] * inverse);
  return scale;
}

static inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

static void write_operand(const PrepareArgs& a, float* x) {
  if (a.kind == OperandKind::bf16) {
    uint16_t* out = static_cast<uint16_t*>(a.operand);
    for (int64_t i = 0; i < a.n; ++i) out[i] = bf16_of(x[i]);
    for (int64_t i = a.n; i < a.padded; ++i) out[i] = 0;
  } else {
    float* out = static_cast<float*>(a.operand);
    if (out != x)
      for (int64_t i = 0; i < a.n; ++i) out[i] = x[i];
    for (int64_t i = a.n; i < a.padded; ++i) out[i] = 0.0f;
  }
}

// Integers for micro/nvfp4_dot.h: `x` holds e2m1 values of one group, 16 of them (zeros behind the end).
static inline void write_nvfp4_group(const float* x, float scale, Nvfp4Group* out) {
  static constexpr int kOrder[16] = {0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15};
  int32_t sum = 0;
  int8_t codes[16];
  for (int i = 0; i < 16; ++i) {
    codes[i] = static_cast<int8_t>(static_cast<int32_t>(2.0f * x[i]));
    sum += codes[i];
  }
  for (int i = 0; i < 16; ++i) out->codes[i] = codes[kOrder[i]];
  out->scale = 0.25f * scale;
  out->offset = -12 * sum;
}

enum Input { kPlain, kFp8Static, kFp8Token, kFp8Group, kMxfp8, kNvfp4, kNvfp4Token };  // = format::InputFormat

template <class Isa>
static void prepare_row(const PrepareArgs& a) {
  float* x = a.kind == OperandKind::f32 ? static_cast<float*>(a.operand) : a.staging;
  if (a.source_bf16) {
    const uint16_t* source = static_cast<const uint16_t*>(a.source);
    for (int64_t i = 0; i < a.n; ++i) x[i] = float_of_bf16(source[i]);
  } else if (a.round_bf16_first) {
    const float* source = static_cast<const float*>(a.source);
    for (int64_t i = 0; i < a.n; ++i) x[i] = float_of_bf16(bf16_of(source[i]));
  } else {
    const float* source = static_cast<const float*>(a.source);
    for (int64_t i = 0; i < a.n; ++i) x[i] = source[i];
  }
  if (a.group_scale != nullptr)
    for (int64_t g = 0; g < (a.padded + 127) / 128; ++g) a.group_scale[g] = 1.0f;
  *a.row_scale = 1.0f;

  switch (a.input) {
    case kFp8Static: {
      const float inverse = 1.0f / a.input_scale;
      for (int64_t i = 0; i < a.n; ++i) x[i] = round_e4m3(x[i] * inverse);
      *a.row_scale = a.input_scale;
      break;
    }
    case kFp8Token: {
      const float scale = fp8_scale(amax(x, a.n));
      for (int64_t i = 0; i < a.n; ++i) x[i] = round_e4m3(x[i] / scale);
      *a.row_scale = scale;
      break;
    }
    case kFp8Group:
      for (int64_t k = 0, g = 0; k < a.n; k += 128, ++g) {
        const int64_t n = least(128, a.n - k);
        const float scale = fp8_scale(amax(x + k, n));
        for (int64_t i = k; i < k + n; ++i) x[i] = round_e4m3(x[i] / scale);
        a.group_scale[g] = scale;
      }
      break;
    case kMxfp8:
      for (int64_t k = 0; k < a.n; k += 32) {
        if (a.n - k >= 32)
          round_mx(x + k, 32);  // a constant count vectorises without a loop
        else
          round_mx(x + k, a.n - k);
      }
      break;
    case kNvfp4:
    case kNvfp4Token: {
      Nvfp4Factors g;
      g.encode = a.input == kNvfp4 ? 1.0f / a.input_scale : at_most_max((448.0f * 6.0f) / amax(x, a.n));
      g.decode = 1.0f / g.encode;
      *a.row_scale = g.decode;
      Nvfp4Group* out = static_cast<Nvfp4Group*>(a.operand);
      for (int64_t k = 0; k < a.padded; k += 16) {
        if (a.kind != OperandKind::nvfp4 && k >= a.n) break;
        if (a.n - k < 16 && a.kind == OperandKind::nvfp4)
          for (int64_t i = a.n > k ? a.n : k; i < k + 16; ++i) x[i] = 0.0f;
        const int64_t n = least(16, a.n - k);
        const float scale = n == 16 ? round_nvfp4(x + k, 16, g) : n > 0 ? round_nvfp4(x + k, n, g) : 0.0f;
        if (a.kind == OperandKind::nvfp4)
          write_nvfp4_group(x + k, scale, out + k / 16);
        else
          for (int64_t i = k; i < k + n; ++i) x[i] *= scale;
      }
      if (a.kind == OperandKind::nvfp4) return;
      break;
    }
    default:
      break;
  }
  write_operand(a, x);
}

// exp(x) within 2 units in the last place; 0 below -103, infinity above 88.7; NaN stays. 2^n by two factors, so that
// results near the ends of the range are right.
static inline float exp_f32(float x) {
  float c = x < -104.0f ? -104.0f : x;
  c = c > 89.0f ? 89.0f : c;
  const float shifted = c * 1.44269504088896341f + 12582912.0f;  // 1.5 * 2^23: rounds to an integer
  const float n = shifted - 12582912.0f;
  const float r = (c - n * 0.693359375f) - n * -2.12194440e-4f;  // the first product is exact
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = (p * r) * r + r + 1.0f;
  const int32_t i = static_cast<int32_t>(bits_of(shifted)) - 0x4b400000;
  const int32_t half = i >> 1;
  return p * float_of(static_cast<uint32_t>(half + 127) << 23) * float_of(static_cast<uint32_t>(i - half + 127) << 23);
}

enum Act { kGelu = 0, kSilu = 2, kSwiglu = 3, kGeglu = 4, kRelu2 = 6, kGegluTanh = 8, kIdentity = 9 };

static inline float silu_f32(float x, float alpha) { return x / (1.0f + exp_f32(-alpha * x)); }

static inline float gelu_tanh_f32(float x) {
  const float u = 0.7978845608028654f * (x + 0.044715f * (x * x * x));
  return x / (1.0f + exp_f32(-2.0f * u));
}

// Through the library: erfc has no short polynomial that is right to a few units everywhere.
static inline float gelu_erf_f32(float x) { return 0.5f * x * __builtin_erfcf(-0.70710678118654752f * x); }

template <class Isa>
static void activate(const ActivateArgs& a) {
  const float *up = a.up, *gate = a.gate;
  float* out = a.out;
  switch (a.act) {
    case kSwiglu:
      for (int64_t i = 0; i < a.cols; ++i) {
        const float g = gate[i] > a.limit ? a.limit : gate[i];
        const float clipped = up[i] > a.limit ? a.limit : up[i];
        const float u = clipped < -a.limit ? -a.limit : clipped;
        out[i] = silu_f32(g, a.alpha) * (u + a.beta);
      }
      break;
    case kSilu:
      for (int64_t i = 0; i < a.cols; ++i) out[i] = silu_f32(up[i], 1.0f);
      break;
    case kRelu2:
      for (int64_t i = 0; i < a.cols; ++i) {
        const float positive = up[i] < 0.0f ? 0.0f : up[i];
        out[i] = positive * positive;
      }
      break;
    case kGegluTanh:
      for (int64_t i = 0; i < a.cols; ++i) out[i] = up[i] * gelu_tanh_f32(gate[i]);
      break;
    case kGeglu:
      for (int64_t i = 0; i < a.cols; ++i) out[i] = up[i] * gelu_erf_f32(gate[i]);
      break;
    case kGelu:
      for (int64_t i = 0; i < a.cols; ++i) out[i] = gelu_erf_f32(up[i]);
      break;
    default:
      for (int64_t i = 0; i < a.cols; ++i) out[i] = up[i];
      break;
  }
}

template <class Isa>
static void combine(const CombineArgs& a) {
  constexpr int64_t kBlock = 256;
  float sum[kBlock];
  for (int64_t c = 0; c < a.cols; c += kBlock) {
    const int64_t n = least(kBlock, a.cols - c);
    for (int64_t i = 0; i < n; ++i) sum[i] = 0.0f;
    for (int r = 0; r < a.count; ++r) {
      const float w = a.weights[r];
      if (a.bf16) {
        const uint16_t* row = static_cast<const uint16_t*>(a.rows[r]) + c;
        for (int64_t i = 0; i < n; ++i) sum[i] = __builtin_fmaf(w, float_of_bf16(row[i]), sum[i]);
      } else {
        const float* row = static_cast<const float*>(a.rows[r]) + c;
        for (int64_t i = 0; i < n; ++i) sum[i] = __builtin_fmaf(w, row[i], sum[i]);
      }
    }
    if (a.bf16) {
      uint16_t* out = static_cast<uint16_t*>(a.out) + c;
      for (int64_t i = 0; i < n; ++i) out[i] = bf16_of(sum[i]);
    } else {
      float* out = static_cast<float*>(a.out) + c;
      for (int64_t i = 0; i < n; ++i) out[i] = sum[i];
    }
  }
}

template <class Isa>
static void round_bf16(const float* in, uint16_t* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = bf16_of(in[i]);
}

}  // namespace
}  // namespace sluice::kernels::cpu
