// SPDX-License-Identifier: Apache-2.0
// Random angles of the rotary embedding.
#pragma once

#include "tests/ops/conformance.h"

namespace sluice::ops {

// Angles of each row of a batch, as exact values of D.
struct Angles {
  Rows cosine, sine;
  Angles(Conformance& t, DType d, int64_t rows, int64_t half)
      : cosine(t.rows(DType::f32, rows, half, 0)), sine(cosine) {
    std::uniform_real_distribution<float> uniform(0, 6.2831853f);
    const auto rounded = [&](float v) { return d == DType::f32 ? v : round_to_bf16(v); };
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t i = 0; i < half; ++i) {
        const float angle = uniform(random());
        cosine.set(r, i, rounded(std::cos(angle)));
        sine.set(r, i, rounded(std::sin(angle)));
      }
  }
  RopeAngles view(int64_t row = 0) {
    if (cosine.cols() == 0) return {};
    return {cosine.floats() + row * cosine.cols(), sine.floats() + row * sine.cols(), cosine.cols()};
  }
};

}  // namespace sluice::ops
