// SPDX-License-Identifier: Apache-2.0
// Every operation on every device against its definition in double, written from ops.h and linear.h. A test is a
// TEST_P(Conformance, ...) in the file of its area; conformance_test.cc lists the devices.
#pragma once

#include <gtest/gtest.h>

#include "ops/ops.h"
#include "tests/ops/memory.h"

namespace sluice::ops {

inline ThreadPool& test_pool() {
  static ThreadPool pool(2);
  return pool;
}

class Conformance : public testing::TestWithParam<Device*>, private FreshRandom {
 public:
  // Scratch memory begins as NaN, and a write around a piece of it fails the test.
  Conformance() {
    ops->workspace().isolate([this](int64_t bytes) { return guarded(*queue, bytes); });
  }

  Rows rows(DType dtype, int64_t rows, int64_t cols, int64_t gap = 3) { return {*queue, dtype, rows, cols, gap}; }
  // Longer than the CPU's pieces of 1024; a GPU takes heads of up to 1024 (ops.h).
  int64_t widest_head() const { return ctx.device().id().is_host() ? 1030 : 1022; }
  // What a probability of attention may lose, as a part of the row's largest, where it is too small for its type: below
  // 2^-126 a float32 may be zero. A GPU multiplies pages of codes by halves (docs/numerics.md, "Cached keys and
  // values").
  double lost_probability(DType q, DType pages) const {
    const bool halves = q == DType::bf16 && pages == DType::e4m3 && !ctx.device().id().is_host();
    return halves ? 0x1p-39 : 0x1p-126;
  }
  // float32 [n] of the device: weights of norms, biases.
  Rows vector(int64_t n, float deviation, float mean) {
    return Rows(*queue, DType::f32, 1, n, 0).randomize(deviation, mean);
  }
  Values ints(const std::vector<int32_t>& v) { return {*queue, v}; }

  std::unique_ptr<Queue> queue = GetParam()->make_queue();
  Context ctx{.pool = test_pool(), .queue = *queue};
  std::unique_ptr<Ops> ops = make_ops(ctx);
};

}  // namespace sluice::ops
