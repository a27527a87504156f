// SPDX-License-Identifier: Apache-2.0
// The level `scalar`: plain C++ for any processor.
#include "kernels/cpu/micro/gemm.h"
#include "kernels/cpu/micro/kernel_table.h"
#include "kernels/cpu/micro/probe.h"
#include "kernels/cpu/micro/row_ops.h"
#include "kernels/cpu/micro/tile_product.h"

namespace sluice::kernels::cpu {
namespace {

struct Scalar {
  static constexpr int kKPerStep = 1, kTileM = 4, kTilePanels = 1, kTwoPanelM = 0;
  static constexpr bool kInterleavedPrefetch = true;
  struct F {
    float v[16];
  };
  using W = F;
  using X = float;
  template <int kBits>
  using Raw = const uint8_t*;

  SLUICE_INLINE F zero() { return F{}; }
  SLUICE_INLINE F load(const float* p) {
    F f;
    __builtin_memcpy(&f, p, sizeof f);
    return f;
  }
  SLUICE_INLINE void store(float* p, const F& f) { __builtin_memcpy(p, &f, sizeof f); }
  SLUICE_INLINE F load_weights(const uint8_t* p) { return load(reinterpret_cast<const float*>(p)); }
  SLUICE_INLINE void store_weights(uint8_t* p, const F& f) { __builtin_memcpy(p, &f, sizeof f); }
  SLUICE_INLINE float load_one(const void* p) {
    float f;
    __builtin_memcpy(&f, p, sizeof f);
    return f;
  }
  SLUICE_INLINE X broadcast_x(const uint8_t* p) { return load_one(p); }
  SLUICE_INLINE F broadcast_f32(const void* p) {
    F f;
    for (float& v : f.v) v = load_one(p);
    return f;
  }
  SLUICE_INLINE F add(const F& a, const F& b) {
    F f;
    for (int i = 0; i < 16; ++i) f.v[i] = a.v[i] + b.v[i];
    return f;
  }
  SLUICE_INLINE F multiply(const F& a, const F& b) {
    F f;
    for (int i = 0; i < 16; ++i) f.v[i] = a.v[i] * b.v[i];
    return f;
  }
  // Two roundings, because a fused multiply-add without the instruction is a slow library call.
  SLUICE_INLINE F multiply_add(const F& w, X x, const F& acc) {
    F f;
    for (int i = 0; i < 16; ++i) f.v[i] = w.v[i] * x + acc.v[i];
    return f;
  }
  SLUICE_INLINE F multiply_add_f32(const F& a, const F& b, const F& acc) {
    F f;
    for (int i = 0; i < 16; ++i) f.v[i] = a.v[i] * b.v[i] + acc.v[i];
    return f;
  }
  SLUICE_INLINE void prefetch_near(const uint8_t*) {}
  SLUICE_INLINE void prefetch_far(const uint8_t*) {}

  // The value / 256, which is what the other levels get by reading e4m3 as float16.
  static float e4m3(uint32_t code) {
    const uint32_t sign = (code & 0x80u) << 24, magnitude = code & 0x7fu;
    const float subnormal = static_cast<float>(magnitude) * 0x1p-17f;
    const float normal = __builtin_bit_cast(float, (magnitude << 20) + (112u << 23));
    return __builtin_bit_cast(float, sign | __builtin_bit_cast(uint32_t, magnitude < 8u ? subnormal : normal));
  }
  static float e2m1(uint32_t code) {
    static constexpr float kValues[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                          -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};
    return kValues[code & 15u];
  }
  SLUICE_INLINE F scale_e8m0(const uint8_t* p) {
    F f;
    for (int i = 0; i < 16; ++i) f.v[i] = __builtin_bit_cast(float, static_cast<uint32_t>(p[i]) << 23);
    return f;
  }
  SLUICE_INLINE F scale_e4m3(const uint8_t* p) {
    F f;
    for (int i = 0; i < 16; ++i) f.v[i] = e4m3(p[i]);
    return f;
  }
  template <int kBits>
  SLUICE_INLINE const uint8_t* load_codes(const uint8_t* p) {
    return p;
  }
  template <int kBits, int kStep>
  SLUICE_INLINE F decode(const uint8_t* block) {
    F f;
    for (int r = 0; r < 16; ++r) {
      if constexpr (kBits == 16) {
        uint16_t b;
        __builtin_memcpy(&b, block + 4 * r + 2 * kStep, 2);
        f.v[r] = float_of_bf16(b);
      } else if constexpr (kBits == 8) {
        f.v[r] = e4m3(block[32 * (kStep % 2) + 2 * r + kStep / 2]);
      } else {
        uint32_t d;
        __builtin_memcpy(&d, block + 4 * r, 4);
        f.v[r] = e2m1(d >> (16 * (kStep % 2) + 4 * (kStep / 2)));
      }
    }
    return f;
  }
};

}  // namespace

const KernelTable kScalarKernels = {
    .gemm = {gemm<Scalar, Bf16Coding>, gemm<Scalar, E4m3Coding>, gemm<Scalar, E4m3BlockCoding>,
             gemm<Scalar, E4m3MxCoding>, gemm<Scalar, E2m1NvCoding>, gemm<Scalar, E2m1MxCoding>},
    .pack_row = pack_row,
    .activate = activate,
    .weighted_sum = weighted_sum,
    .round_bf16 = round_bf16,
    .tile_product = {tile_product<Scalar, TileOperands::f32>, tile_product<Scalar, TileOperands::bf16_rows>,
                     tile_product<Scalar, TileOperands::bf16_columns>},
    .dot_probe = dot_probe<Scalar>,
    .read_probe = read_probe<Scalar>,
};

}  // namespace sluice::kernels::cpu
