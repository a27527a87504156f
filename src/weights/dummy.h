// SPDX-License-Identifier: Apache-2.0
// Random weights in the shapes of a configuration, for runs without the checkpoint.
#pragma once

#include <string_view>

#include "base/hd.h"
#include "base/thread_pool.h"
#include "tensor/tensor.h"

namespace sluice::weights {

// Largest |x| assumed of inputs that a dummy model scales statically: normed activations stay well below it.
inline constexpr float kDummyAmax = 16.0f;

// bf16 or f32 values that depend on name and index alone, so every run and number of threads gives the same model. The
// name decides the distribution; all are uniform:
//   *norm*.weight           0.9 to 1.1
//   A_log, D, dt_bias       Mamba-2's initial ranges: log of 1 to 16, 1, inverse softplus of 0.001 to 0.1
//   *bias                   -0.02 to 0.02
//   everything else         of variance 1 / (last dimension): a matrix product keeps the variance of its input
Tensor dummy_tensor(ThreadPool& pool, std::string_view name, DType dtype, const Shape& shape);

// What a matrix of that name is filled with, for devices that do it themselves.
struct DummyRange {
  uint64_t seed = 0;
  float low = 0, high = 0;
};
DummyRange dummy_range(std::string_view name, const Shape& shape);

// splitmix64 (Steele, Lea, Flood 2014): a good value for every index, in any order.
HD inline uint64_t dummy_mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// Value i: uniform in [low, high), in 2^24 steps. The product is rounded before the sum on every device.
HD inline float dummy_value(const DummyRange& d, int64_t i) {
  const float unit = static_cast<float>(dummy_mix(d.seed + static_cast<uint64_t>(i)) >> 40) * 0x1p-24f;
#if defined(__CUDA_ARCH__)
  return __fadd_rn(d.low, __fmul_rn(__fsub_rn(d.high, d.low), unit));
#else
  return d.low + (d.high - d.low) * unit;
#endif
}

}  // namespace sluice::weights
