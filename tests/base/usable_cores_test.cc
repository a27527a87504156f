// SPDX-License-Identifier: Apache-2.0
#include "base/usable_cores.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <fstream>

namespace sluice {
namespace {

// A tree of control groups as the kernel's documents describe it.
class CpuQuota : public testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directories(root_); }
  void TearDown() override { std::filesystem::remove_all(root_); }

  void write(const std::filesystem::path& file, const std::string& text) {
    std::filesystem::create_directories((root_ / file).parent_path());
    std::ofstream(root_ / file) << text;
  }
  double quota(const std::string& membership) {
    write("membership", membership);
    return cpu_quota(root_ / "membership", root_ / "mount");
  }

  const std::filesystem::path root_ =
      std::filesystem::path(testing::TempDir()) /
      fmt::format("sluice_cpu_quota_{}_{}", ::getpid(), testing::UnitTest::GetInstance()->current_test_info()->name());
};

TEST_F(CpuQuota, Version2) {
  write("mount/a/b/cpu.max", "max 100000\n");
  EXPECT_TRUE(std::isinf(quota("0::/a/b\n")));
  write("mount/a/cpu.max", "150000 100000\n");
  EXPECT_EQ(quota("0::/a/b\n"), 1.5);
  EXPECT_TRUE(std::isinf(quota("0::/c\n")));
  write("mount/cpu.max", "50000 100000\n");  // a container's own group, whose membership is the host's
  EXPECT_EQ(quota("0::/docker/0123\n"), 0.5);
  EXPECT_EQ(quota("0::/../..\n"), 0.5);
}

TEST_F(CpuQuota, Version1) {
  write("mount/cpu,cpuacct/pod/cpu.cfs_quota_us", "400000\n");
  write("mount/cpu,cpuacct/pod/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(quota("9:memory:/pod\n4:cpu,cpuacct:/pod\n0::/\n"), 4);
  write("mount/cpu/pod/cpu.cfs_quota_us", "-1\n");
  write("mount/cpu/pod/cpu.cfs_period_us", "100000\n");
  EXPECT_TRUE(std::isinf(quota("1:cpu:/pod\n")));
  EXPECT_TRUE(std::isinf(quota("3:cpuset:/pod\n2:cpuacct:/pod\n")));
}

TEST_F(CpuQuota, NoneThatCanBeRead) {
  EXPECT_TRUE(std::isinf(cpu_quota(root_ / "absent", root_ / "mount")));
  write("mount/cpu.max", "many\n");
  for (const std::string membership : {"", "0::/\n", "no colons\n", "0:\n", ":::\n"})
    EXPECT_TRUE(std::isinf(quota(membership))) << membership;
}

TEST(UsableCores, AtLeastOne) { EXPECT_GE(usable_cores(), 1); }

}  // namespace
}  // namespace sluice
