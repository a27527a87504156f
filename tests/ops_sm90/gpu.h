// SPDX-License-Identifier: Apache-2.0
// What the tests of the GPU's operations share: the device, its memory, random data.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "base/bf16.h"
#include "device/cuda.h"
#include "kernels/sm90/device.h"
#include "ops/ops.h"
#include "tests/support/random.h"

#define SLUICE_SKIP_WITHOUT_DEVICE() \
  if (const std::string problem = sluice::sm90::device_problem(); !problem.empty()) GTEST_SKIP() << problem

namespace sluice::test {

inline ThreadPool& test_pool() {
  static ThreadPool pool(2);
  return pool;
}

// One generator for all of a test's data.
inline std::mt19937_64& random() {
  static const testing::TestInfo* test = nullptr;
  static std::mt19937_64 engine;
  const testing::TestInfo* now = testing::UnitTest::GetInstance()->current_test_info();
  if (test != now) engine = rng<std::mt19937_64>();
  test = now;
  return engine;
}
inline float normal(float deviation = 1) { return std::normal_distribution<float>(0, deviation)(random()); }

struct Gpu {
  std::unique_ptr<Device> device = make_cuda_device(0);
  std::unique_ptr<Queue> queue = device->make_queue();
  Context ctx{.pool = test_pool(), .queue = *queue};

  template <class T>
  std::shared_ptr<T> upload(const std::vector<T>& values) const {
    auto memory = device->allocate(static_cast<int64_t>(values.size() * sizeof(T)));
    queue->copy(memory.get(), values.data(), static_cast<int64_t>(values.size() * sizeof(T)));
    queue->wait();
    return {memory, static_cast<T*>(memory.get())};
  }
  template <class T>
  std::vector<T> download(const std::shared_ptr<T>& memory, size_t count) const {
    std::vector<T> values(count);
    queue->copy(values.data(), memory.get(), static_cast<int64_t>(count * sizeof(T)));
    queue->wait();
    return values;
  }
};

}  // namespace sluice::test
