// SPDX-License-Identifier: Apache-2.0
// Memory of the cache that is given back and taken again: in place on the host, anew on another device.
#include "model/cache.h"

#include <gtest/gtest.h>

#include <cstring>

#include "base/error.h"

namespace sluice::model {
namespace {

// Memory of the host that counts as a GPU's.
class OtherDevice : public Device {
 public:
  DeviceId id() const override { return {DeviceId::Kind::cuda, 3}; }
  DeviceMemory memory() override { return {}; }
  std::shared_ptr<void> allocate(int64_t bytes) override {
    if (taken + bytes > limit) fail(ErrorCode::out_of_memory, "could not allocate {} bytes", bytes);
    taken += bytes;
    return {new char[static_cast<size_t>(bytes)], [this, bytes](void* p) {
              delete[] static_cast<char*>(p);
              taken -= bytes;
            }};
  }
  std::shared_ptr<void> allocate_staging(int64_t bytes) override { return host_device().allocate_staging(bytes); }
  std::unique_ptr<Queue> make_queue() override { return nullptr; }
  int64_t taken = 0, limit = INT64_MAX;
};

CacheShape shape() {
  CacheShape out;
  out.attention = {{2, 16, 16}, {1, 24, 0}};
  out.mamba = {{4, 8, 2, 16, 4}};
  return out;
}

TEST(Cache, MemoryOfAnotherDeviceIsGivenBackAndTakenAgain) {
  OtherDevice device;
  Cache cache(device, shape(), {.blocks = 5, .block_size = 8, .slots = 3});
  const int64_t bytes = device.taken;
  EXPECT_EQ(bytes, cache.bytes());
  cache.restore();
  EXPECT_EQ(device.taken, bytes) << "nothing was given back";
  for (int round = 0; round < 2; ++round) {
    cache.release();
    EXPECT_EQ(device.taken, 0);
    cache.restore();
    EXPECT_EQ(device.taken, bytes);
    EXPECT_NE(cache.keys(0).data, nullptr);
    EXPECT_NE(cache.values(0).data, nullptr);
    EXPECT_EQ(cache.values(1).data, nullptr);
    EXPECT_NE(cache.ssm_states(0).data, nullptr);
  }
  cache.release();
  device.limit = bytes / 2;
  for (int again = 0; again < 2; ++again) {
    EXPECT_THROW(cache.restore(), Error);
    EXPECT_EQ(device.taken, 0) << "all or nothing";
  }
  device.limit = bytes;
  cache.restore();
  EXPECT_EQ(device.taken, bytes);
}

TEST(Cache, TheHostsAddressesStay) {
  Cache cache(host_device(), shape(), {.blocks = 64, .block_size = 64, .slots = 3});
  void* const keys = cache.keys(0).data;
  std::memset(keys, 1, 1000);
  cache.release();
  cache.restore();
  EXPECT_EQ(cache.keys(0).data, keys);
  for (int i = 0; i < 1000; ++i) ASSERT_EQ(static_cast<const char*>(keys)[i], 0);
}

}  // namespace
}  // namespace sluice::model
