// SPDX-License-Identifier: Apache-2.0
// The devices of the suite, and what they owe each test: memory, queues and scratch space.
#include "tests/ops/conformance.h"

#include <gtest/gtest-spi.h>

#include "device/cuda.h"

namespace sluice::ops {
namespace {

// Those that this build and this machine have.
std::vector<Device*> devices() {
  static const std::unique_ptr<Device> gpu = cuda_device_count() > 0 ? make_cuda_device(0) : nullptr;
  std::vector<Device*> found{&host_device()};
  if (gpu != nullptr) found.push_back(gpu.get());
  return found;
}

INSTANTIATE_TEST_SUITE_P(EveryDevice, Conformance, testing::ValuesIn(devices()),
                         [](const testing::TestParamInfo<Device*>& device) {
                           std::string name = to_string(device.param->id());
                           std::replace(name.begin(), name.end(), ':', '_');
                           return name;
                         });

TEST_P(Conformance, OpsAreOfTheContextsDevice) {
  EXPECT_EQ(ctx.device().id(), GetParam()->id());
  EXPECT_EQ(&ops->ctx(), &ctx);
}

TEST_P(Conformance, WorkspaceGrowsOnceAndNests) {
  Workspace w(ctx.device());
  for (int round = 0; round < 3; ++round) {
    Workspace::Scope outer(w);
    auto* a = w.take<double>(1000);
    const double written = 1.25 + round;
    queue->copy(a + 999, &written, sizeof written);
    for (int i = 0; i < 10; ++i) {
      Workspace::Scope inner(w);
      auto* b = w.take<float>(100000);
      EXPECT_EQ(reinterpret_cast<uintptr_t>(b) % Device::kAlignment, 0u);
      queue->zero(b, 100000 * sizeof(float));
    }
    double read = 0;
    queue->copy(&read, a + 999, sizeof read);
    queue->wait();
    EXPECT_EQ(read, written);
  }
  const int64_t capacity = w.capacity();
  {
    Workspace::Scope scope(w);
    w.take<double>(1000);
    w.take<float>(100000);
  }
  EXPECT_EQ(w.capacity(), capacity);
}

TEST_P(Conformance, AWriteAroundScratchIsFound) {
  const auto zero_around = [&](int64_t before, int64_t after) {
    const Workspace::Scope scope(ops->workspace());
    auto* taken = ops->workspace().take<std::byte>(100);
    queue->zero(taken - before, before + 100 + after);
  };
  zero_around(0, 0);
  EXPECT_NONFATAL_FAILURE(zero_around(1, 0), "a write before the memory");
  EXPECT_NONFATAL_FAILURE(zero_around(0, 1), "a write after the end of the memory");
}

}  // namespace
}  // namespace sluice::ops
