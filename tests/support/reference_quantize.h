// SPDX-License-Identifier: Apache-2.0
// One value through an input format, from docs/numerics.md (Inputs), in double with
// each float32 operation rounded where the specification has one. A double product or quotient of two floats rounds to
// the same float as the float operation does, so codes and scales are those of IEEE float32, bit for bit.
#pragma once

#include <cfloat>
#include <cmath>

#include "format/formats.h"
#include "tests/support/nearest_code.h"

namespace sluice::test {

inline double to_f32(double x) { return static_cast<float>(x); }

// Nearest bfloat16, ties to even, straight from double.
inline double to_bf16(double x) {
  if (x == 0 || !std::isfinite(x)) return x;
  int e = 0;
  std::frexp(x, &e);
  const int quantum = std::max(e - 8, -133);  // 8 significant bits; subnormals below 2^-126
  return std::ldexp(std::nearbyint(std::ldexp(x, -quantum)), quantum);
}

struct ReferenceCode {
  int code = 0;
  double scale = 1;      // of the group
  double row_scale = 1;  // of the row or the tensor
  bool fp4 = false;
  double value() const {
    const auto c = static_cast<uint8_t>(code);
    return (fp4 ? e2m1_value(c) : e4m3_value(c)) * scale * row_scale;
  }
};

// v: the value; group_amax, row_amax: largest |value| of its scale group and of its row, at most FLT_MAX.
inline ReferenceCode reference_code(format::InputFormat f, double v, double group_amax, double row_amax,
                                    double input_scale) {
  using format::InputFormat;
  ReferenceCode q;
  q.fp4 = f == InputFormat::nvfp4 || f == InputFormat::nvfp4_token;
  switch (f) {
    case InputFormat::plain:
      break;
    case InputFormat::fp8_static:
      q.row_scale = input_scale;
      q.code = nearest_e4m3(to_f32(v * to_f32(1.0 / input_scale)));
      break;
    case InputFormat::fp8_token:
      q.row_scale = std::max<double>(to_f32(row_amax / 448.0), FLT_MIN);
      q.code = nearest_e4m3(to_f32(v / q.row_scale));
      break;
    case InputFormat::fp8_group:
      q.scale = std::max<double>(to_f32(group_amax / 448.0), FLT_MIN);
      q.code = nearest_e4m3(to_f32(v / q.scale));
      break;
    case InputFormat::mxfp8:
      q.scale = e8m0_value(e8m0_at_least(to_f32(group_amax * to_f32(1.0 / 448.0))));
      q.code = nearest_e4m3(q.scale == 0 ? std::copysign(0.0, v) : to_f32(v / q.scale));
      break;
    case InputFormat::nvfp4:
    case InputFormat::nvfp4_token: {
      const bool token = f == InputFormat::nvfp4_token;
      const double encode = !token          ? to_f32(1.0 / input_scale)
                            : row_amax == 0 ? static_cast<double>(FLT_MAX)
                                            : std::min<double>(to_f32(std::min(2688.0 / row_amax, 1e300)), FLT_MAX);
      const double decode = to_f32(1.0 / encode);
      q.row_scale = token ? decode : input_scale;
      q.scale = e4m3_value(nearest_e4m3(to_f32(group_amax * to_f32(encode * to_f32(1.0 / 6.0)))));
      const double inverse = q.scale == 0 ? static_cast<double>(FLT_MAX)
                                          : std::min<double>(to_f32(1.0 / to_f32(q.scale * decode)), FLT_MAX);
      q.code = nearest_e2m1(to_f32(v * inverse));
      break;
    }
  }
  return q;
}

// Columns that share a scale below the row's.
inline int reference_group(format::InputFormat f) {
  using format::InputFormat;
  switch (f) {
    case InputFormat::fp8_group:
      return 128;
    case InputFormat::mxfp8:
      return 32;
    case InputFormat::nvfp4:
    case InputFormat::nvfp4_token:
      return 16;
    default:
      return 0;
  }
}

}  // namespace sluice::test
