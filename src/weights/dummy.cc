// SPDX-License-Identifier: Apache-2.0
#include "weights/dummy.h"

#include <algorithm>
#include <cmath>

#include "base/bf16.h"
#include "base/error.h"
#include "base/math.h"

namespace sluice::weights {

namespace {

uint64_t seed_of(std::string_view name) {
  uint64_t seed = 42;
  for (const char c : name) seed = dummy_mix(seed ^ static_cast<unsigned char>(c));
  return seed;
}

struct Distribution {
  float low, high;
  float (*map)(float) = nullptr;
};

Distribution distribution_of(std::string_view name, const Shape& shape) {
  const std::string_view last = name.substr(name.rfind('.') + 1);
  const std::string_view module = name.substr(0, name.size() - last.size());
  if (last == "weight" && module.find("norm", module.substr(0, module.size() - 1).rfind('.') + 1) != module.npos)
    return {0.9f, 1.1f};
  if (last == "A_log") return {1, 16, [](float x) { return std::log(x); }};
  if (last == "D") return {1, 1};
  if (last == "dt_bias")
    return {std::log(0.001f), std::log(0.1f), [](float x) { return std::log(std::expm1(std::exp(x))); }};
  if (last.ends_with("bias")) return {-0.02f, 0.02f};
  const float bound = std::sqrt(3.0f / static_cast<float>(shape.empty() ? 1 : std::max<int64_t>(shape.back(), 1)));
  return {-bound, bound};
}

}  // namespace

DummyRange dummy_range(std::string_view name, const Shape& shape) {
  const Distribution d = distribution_of(name, shape);
  check(d.map == nullptr, "the values of {} are no uniform range", name);
  return {seed_of(name), d.low, d.high};
}

Tensor dummy_tensor(ThreadPool& pool, std::string_view name, DType dtype, const Shape& shape) {
  check(dtype == DType::bf16 || dtype == DType::f32, "dummy weights are asked for as {}; accepted: bfloat16, float32",
        to_string(dtype));
  const Distribution d = distribution_of(name, shape);
  const DummyRange range{seed_of(name), d.low, d.high};
  Tensor out(dtype, shape);
  constexpr int64_t kPiece = int64_t{1} << 16;
  pool.parallel_for(ceil_div(out.elements(), kPiece), [&](int64_t piece, int) {
    const int64_t begin = piece * kPiece, end = std::min(begin + kPiece, out.elements());
    const auto value = [&](int64_t i) {
      const float x = dummy_value(range, i);
      return d.map == nullptr ? x : d.map(x);
    };
    for (int64_t i = begin; i < end; ++i) {
      if (dtype == DType::bf16)
        out.as<uint16_t>()[i] = float_to_bf16(value(i));
      else
        out.as<float>()[i] = value(i);
    }
  });
  return out;
}

}  // namespace sluice::weights
