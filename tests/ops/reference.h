// SPDX-License-Identifier: Apache-2.0
// Random rows in the run's type, and exact values to hold results against.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

#include "base/bf16.h"
#include "base/context.h"
#include "ops/matrix.h"

namespace sluice::ops {

inline ThreadPool& test_pool() {
  static ThreadPool pool(2);
  return pool;
}
inline Context test_context() { return Context{test_pool()}; }

inline std::mt19937& random() {
  static std::mt19937 engine = [] {
    const unsigned seed = std::random_device{}();
    std::printf("seed %u\n", seed);
    return std::mt19937(seed);
  }();
  return engine;
}

// Rows of D with room between them; everything that is not set is NaN.
struct Rows {
  DType dtype;
  int64_t rows, cols, stride;
  std::vector<float> f32;
  std::vector<bf16_t> bf16;

  Rows(DType d, int64_t r, int64_t c, int64_t gap = 3)
      : dtype(d), rows(r), cols(c), stride(c + gap), f32(r * stride, NAN), bf16(r * stride, 0x7fc0) {}

  Rows& randomize(float scale = 1.0f) {
    std::normal_distribution<float> normal(0, scale);
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < cols; ++c) set(r, c, normal(random()));
    return *this;
  }
  void set(int64_t r, int64_t c, float v) {
    f32[r * stride + c] = v;
    bf16[r * stride + c] = float_to_bf16(v);
  }
  double at(int64_t r, int64_t c) const {
    return dtype == DType::f32 ? f32[r * stride + c] : bf16_to_float(bf16[r * stride + c]);
  }
  Matrix view() {
    return {dtype == DType::f32 ? static_cast<void*>(f32.data()) : bf16.data(), dtype, rows, cols, stride};
  }
  // Nothing between the rows was touched.
  bool gaps_untouched() const {
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = cols; c < stride; ++c)
        if (dtype == DType::f32 ? !std::isnan(f32[r * stride + c]) : bf16[r * stride + c] != 0x7fc0) return false;
    return true;
  }
};

// Half a unit in the last place of D at |v|, relative: what one rounding may cost.
inline double half_ulp(DType d) { return d == DType::f32 ? 0x1p-24 : 0x1p-8; }

inline const DType kTypes[] = {DType::f32, DType::bf16};

}  // namespace sluice::ops
