// SPDX-License-Identifier: Apache-2.0
// The row operations of row_args.h, as plain loops that the compiler vectorises for the instruction set of the file
// that includes this. Inner loops have no branches and no library calls, because either would end vectorisation.
// Rounding gives the same bits as format/quantize.h: tests/kernels/cpu compares them value by value.
#pragma once

#include "kernels/cpu/micro/row_args.h"

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

// The nearest e4m3 value, ties to even, saturating at 448. NaN stays NaN.
static inline float round_e4m3(float f) {
  const uint32_t u = bits_of(f), a = u & 0x7fffffffu;
  const uint32_t capped = a < 0x43e00000u ? a : 0x43e00000u;
  const uint32_t normal = (capped + 0x7ffffu + ((capped >> 20) & 1u)) & 0xfff00000u;
  const uint32_t tiny = bits_of((float_of(capped) + 16384.0f) - 16384.0f);  // to a multiple of 2^-9
  const uint32_t value = capped < 0x3c800000u ? tiny : normal;
  return float_of((u & 0x80000000u) | (a > 0x7f800000u ? a : value));
}

// The nearest e2m1 value, ties to the even code, saturating at 6. NaN gives +6.
static inline float round_e2m1(float f) {
  const uint32_t u = bits_of(f), a = u & 0x7fffffffu;
  const uint32_t capped = a < 0x40c00000u ? a : 0x40c00000u;
  const uint32_t normal = (capped + 0x1fffffu + ((capped >> 22) & 1u)) & 0xffc00000u;
  const uint32_t tiny = bits_of((float_of(capped) + 4194304.0f) - 4194304.0f);  // to a multiple of 0.5
  const uint32_t value = capped < 0x3f800000u ? tiny : normal;
  return float_of((a > 0x7f800000u ? 0u : u & 0x80000000u) | value);
}

// The largest magnitude. Infinity counts as FLT_MAX. NaN is larger than all others and stays NaN.
static inline float amax(const float* x, int64_t n) {
  uint32_t m = 0;
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t a = bits_of(x[i]) & 0x7fffffffu;
    m = a > m ? a : m;
  }
  return float_of(m == 0x7f800000u ? 0x7f7fffffu : m);
}

static inline float at_most_max(float x) { return x > kFloatMax ? kFloatMax : x; }

// The scale that maps `magnitude` to the largest e4m3 value; never subnormal.
static inline float fp8_scale(float magnitude) {
  const float s = magnitude / 448.0f;
  return s < kFloatMin ? kFloatMin : s;
}

// The exponent byte of the least power of two that is not below `f`, at most 2^127; 255 if `f` is NaN.
static inline uint32_t e8m0_up(float f) {
  const uint32_t u = bits_of(f) & 0x7fffffffu, exponent = u >> 23;
  if (u > 0x7f800000u) return 255u;
  if (exponent >= 254u) return 254u;
  if (exponent == 0) return u > 0x400000u ? 1u : 0u;
  return exponent + ((u & 0x7fffffu) != 0 ? 1u : 0u);
}

// Rounds one group to e4m3 times a power of two. x becomes the values, code * scale, which are exact.
static inline void round_mx(float* x, int64_t n) {
  const uint32_t b = e8m0_up(amax(x, n) * (1.0f / 448.0f));
  const float inverse = b == 255u   ? float_of(0x7fc00000u)
                        : b == 254u ? float_of(0x00400000u)
                        : b == 0u   ? 0.0f
                                    : float_of((254u - b) << 23);
  const float scale = b == 255u ? float_of(0x7fc00000u) : float_of(b << 23);
  for (int64_t i = 0; i < n; ++i) x[i] = round_e4m3(x[i] * inverse) * scale;
}

// The global scale of NVFP4 and its inverse: block scales are e4m3 values times `decode`.
struct Nvfp4Factors {
  float encode, decode;
};

// x becomes e2m1 values. Returns their block scale: value = e2m1 * scale.
static inline float round_nvfp4(float* x, int64_t n, Nvfp4Factors g) {
  const float scale = round_e4m3(amax(x, n) * (g.encode * (1.0f / 6.0f)));
  const float inverse = at_most_max(1.0f / (scale * g.decode));
  for (int64_t i = 0; i < n; ++i) x[i] = round_e2m1(x[i] * inverse);
  return scale;
}

static inline int64_t min_of(int64_t a, int64_t b) { return a < b ? a : b; }

// Stores the values x [n] as bf16 or float32, with zeros after them.
static void write_floats(const PackTarget& target, const float* x, int64_t n) {
  if (target.type == PackedType::bf16) {
    uint16_t* out = static_cast<uint16_t*>(target.data);
    for (int64_t i = 0; i < n; ++i) out[i] = bf16_of(x[i]);
    for (int64_t i = n; i < target.padded_n; ++i) out[i] = 0;
  } else {
    float* out = static_cast<float*>(target.data);
    if (out != x)
      for (int64_t i = 0; i < n; ++i) out[i] = x[i];
    for (int64_t i = n; i < target.padded_n; ++i) out[i] = 0.0f;
  }
}

// Integers for micro/nvfp4_dot.h. `x` holds the 16 e2m1 values of one group, zeros after the end of the row.
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

// A PackRowFn for every PackedType but fixed_point.
static void pack_row(const PackRowArgs& a) {
  const PackTarget& target = a.target;
  const int64_t count = a.source.n;
  float* x = target.type == PackedType::f32 ? static_cast<float*>(target.data) : a.staging;
  if (a.source.bf16) {
    const uint16_t* source = static_cast<const uint16_t*>(a.source.data);
    for (int64_t i = 0; i < count; ++i) x[i] = float_of_bf16(source[i]);
  } else if (a.source.round_to_bf16_first) {
    const float* source = static_cast<const float*>(a.source.data);
    for (int64_t i = 0; i < count; ++i) x[i] = float_of_bf16(bf16_of(source[i]));
  } else {
    const float* source = static_cast<const float*>(a.source.data);
    for (int64_t i = 0; i < count; ++i) x[i] = source[i];
  }
  if (target.group_scale != nullptr)
    for (int64_t g = 0; g < (target.padded_n + 127) / 128; ++g) target.group_scale[g] = 1.0f;
  *target.row_scale = 1.0f;

  switch (a.rounding) {
    case InputRounding::fp8_static: {
      const float inverse = 1.0f / a.input_scale;
      for (int64_t i = 0; i < count; ++i) x[i] = round_e4m3(x[i] * inverse);
      *target.row_scale = a.input_scale;
      break;
    }
    case InputRounding::fp8_token: {
      const float scale = fp8_scale(amax(x, count));
      for (int64_t i = 0; i < count; ++i) x[i] = round_e4m3(x[i] / scale);
      *target.row_scale = scale;
      break;
    }
    case InputRounding::fp8_group:
      for (int64_t k = 0, g = 0; k < count; k += 128, ++g) {
        const int64_t n = min_of(128, count - k);
        const float scale = fp8_scale(amax(x + k, n));
        for (int64_t i = k; i < k + n; ++i) x[i] = round_e4m3(x[i] / scale);
        target.group_scale[g] = scale;
      }
      break;
    case InputRounding::mxfp8:
      for (int64_t k = 0; k < count; k += 32) {
        if (count - k >= 32)
          round_mx(x + k, 32);  // a constant count vectorises without a loop
        else
          round_mx(x + k, count - k);
      }
      break;
    case InputRounding::nvfp4:
    case InputRounding::nvfp4_token: {
      Nvfp4Factors g;
      g.encode =
          a.rounding == InputRounding::nvfp4 ? 1.0f / a.input_scale : at_most_max((448.0f * 6.0f) / amax(x, count));
      g.decode = 1.0f / g.encode;
      *target.row_scale = g.decode;
      Nvfp4Group* out = static_cast<Nvfp4Group*>(target.data);
      for (int64_t k = 0; k < target.padded_n; k += 16) {
        if (target.type != PackedType::nvfp4 && k >= count) break;
        if (count - k < 16 && target.type == PackedType::nvfp4)
          for (int64_t i = count > k ? count : k; i < k + 16; ++i) x[i] = 0.0f;
        const int64_t n = min_of(16, count - k);
        const float scale = n == 16 ? round_nvfp4(x + k, 16, g) : n > 0 ? round_nvfp4(x + k, n, g) : 0.0f;
        if (target.type == PackedType::nvfp4)
          write_nvfp4_group(x + k, scale, out + k / 16);
        else
          for (int64_t i = k; i < k + n; ++i) x[i] *= scale;
      }
      if (target.type == PackedType::nvfp4) return;
      break;
    }
    case InputRounding::plain:
      break;
  }
  write_floats(target, x, count);
}

// exp(x) within 2 units in the last place. 0 below -103, infinity above 88.7, NaN stays NaN. 2^n is two factors, so
// that results near the ends of the range are right.
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

static inline float silu_f32(float x, float alpha) { return x / (1.0f + exp_f32(-alpha * x)); }

static inline float gelu_tanh_f32(float x) {
  const float u = 0.7978845608028654f * (x + 0.044715f * (x * x * x));
  return x / (1.0f + exp_f32(-2.0f * u));
}

// A call of the C library: no short polynomial gives erfc within a few units in the last place everywhere.
static inline float gelu_erf_f32(float x) { return 0.5f * x * __builtin_erfcf(-0.70710678118654752f * x); }

static void activate(const ActivateArgs& a) {
  const float *up = a.up, *gate = a.gate;
  float* out = a.out;
  switch (a.act) {
    case ActivationCode::swiglu:
      for (int64_t i = 0; i < a.cols; ++i) {
        const float g = gate[i] > a.limit ? a.limit : gate[i];
        const float clipped = up[i] > a.limit ? a.limit : up[i];
        const float u = clipped < -a.limit ? -a.limit : clipped;
        out[i] = silu_f32(g, a.alpha) * (u + a.beta);
      }
      break;
    case ActivationCode::silu:
      for (int64_t i = 0; i < a.cols; ++i) out[i] = silu_f32(up[i], 1.0f);
      break;
    case ActivationCode::relu2:
      for (int64_t i = 0; i < a.cols; ++i) {
        const float positive = up[i] < 0.0f ? 0.0f : up[i];
        out[i] = positive * positive;
      }
      break;
    case ActivationCode::geglu_tanh:
      for (int64_t i = 0; i < a.cols; ++i) out[i] = up[i] * gelu_tanh_f32(gate[i]);
      break;
    case ActivationCode::geglu:
      for (int64_t i = 0; i < a.cols; ++i) out[i] = up[i] * gelu_erf_f32(gate[i]);
      break;
    case ActivationCode::gelu:
      for (int64_t i = 0; i < a.cols; ++i) out[i] = gelu_erf_f32(up[i]);
      break;
    case ActivationCode::identity:
      for (int64_t i = 0; i < a.cols; ++i) out[i] = up[i];
      break;
  }
}

static void weighted_sum(const WeightedSumArgs& a) {
  constexpr int64_t kBlock = 256;
  float sum[kBlock];
  for (int64_t c = 0; c < a.cols; c += kBlock) {
    const int64_t n = min_of(kBlock, a.cols - c);
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

static void round_bf16(const float* in, uint16_t* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = bf16_of(in[i]);
}

}  // namespace
}  // namespace sluice::kernels::cpu
