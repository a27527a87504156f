// SPDX-License-Identifier: Apache-2.0
#include "weights/scratch_tensors.h"

#include <gtest/gtest.h>

namespace sluice::weights {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

TEST(ScratchTensors, MemoryIsUsedAgainOnlyAfterTheTensorIsGone) {
  ScratchTensors scratch;
  Tensor first = scratch.make(DType::u8, {16 * kMiB});
  const void* memory = first.data();
  const Tensor view = first.rows(kMiB, 2 * kMiB);
  const Tensor second = scratch.make(DType::u8, {16 * kMiB});
  EXPECT_NE(second.data(), memory);
  first = {};
  EXPECT_NE(scratch.make(DType::u8, {16 * kMiB}).data(), memory) << "a view still reads it";
}

TEST(ScratchTensors, TheSmallestThatIsLargeEnough) {
  ScratchTensors scratch;
  Tensor large = scratch.make(DType::u8, {64 * kMiB}), small = scratch.make(DType::bf16, {8 * kMiB});
  const void *at_large = large.data(), *at_small = small.data();
  large = {}, small = {};
  const Tensor a = scratch.make(DType::f32, {3 * kMiB}), b = scratch.make(DType::u8, {60 * kMiB});
  EXPECT_EQ(a.data(), at_small);
  EXPECT_EQ(b.data(), at_large);
  EXPECT_EQ(a.bytes(), 12 * kMiB);
  EXPECT_EQ(a.shape(), (Shape{3 * kMiB}));
}

TEST(ScratchTensors, TensorsOutliveWhatMadeThem) {
  Tensor tensor;
  {
    ScratchTensors scratch;
    tensor = scratch.make(DType::u8, {9 * kMiB});
    tensor.zero();
  }
  EXPECT_EQ(tensor.as<uint8_t>()[9 * kMiB - 1], 0);
}

}  // namespace
}  // namespace sluice::weights
