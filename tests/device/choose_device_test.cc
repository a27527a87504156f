// SPDX-License-Identifier: Apache-2.0
// Which device a word names, and the sentences of a machine that has none.
#include "device/choose_device.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "device/cuda.h"

namespace sluice {
namespace {

TEST(ChooseDevice, Words) {
  EXPECT_TRUE(choose_device("cpu").id.is_host());
  EXPECT_EQ(choose_device("cuda").id, (DeviceId{DeviceId::Kind::cuda, 0}));
  EXPECT_EQ(choose_device("cuda:12").id, (DeviceId{DeviceId::Kind::cuda, 12}));
  for (const char* word : {"", "gpu", "cuda:", "cuda:-1", "cuda:1x", "CPU"}) try {
      choose_device(word);
      ADD_FAILURE() << word;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::invalid_argument);
      EXPECT_NE(std::string(e.what()).find("accepted: auto, cpu, cuda, cuda:N"), std::string::npos) << e.what();
    }
}

TEST(ChooseDevice, AutoSaysWhy) { EXPECT_FALSE(choose_device("auto").reason.empty()); }

TEST(CudaDevices, SayWhyThereIsNone) {
  EXPECT_EQ(no_device_reason(0, 13000, "x"), "there is no CUDA device: no NVIDIA driver is installed");
  EXPECT_EQ(no_device_reason(12040, 13000, "x"),
            "the NVIDIA driver is too old: it supports CUDA 12.4, and this build needs 13.0");
  EXPECT_EQ(no_device_reason(13000, 13000, "no CUDA-capable device is detected"),
            "there is no CUDA device: no CUDA-capable device is detected");
}

// On a machine without a GPU every index is one too many.
TEST(CudaDevices, ThatAreNotThereAreRefused) {
  const int beyond = cuda_device_count();
  const Support support = cuda_device_supported(beyond);
  EXPECT_FALSE(support);
  EXPECT_FALSE(support.reason.empty());
  try {
    make_cuda_device(beyond);
    FAIL() << "made";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::unsupported) << e.what();
    EXPECT_NE(std::string(e.what()).find(support.reason), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace sluice
