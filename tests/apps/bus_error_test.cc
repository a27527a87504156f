// SPDX-License-Identifier: Apache-2.0
// A file that is truncated while it is mapped (docs/robustness.md, M2).
#include "apps/bus_error.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <string>

#include "apps/command.h"

namespace sluice::apps {
namespace {

TEST(BusError, TruncatedWhileMapped) {
  std::string path = testing::TempDir() + "cut.safetensors-XXXXXX";
  const int fd = mkstemp(path.data());
  ASSERT_GE(fd, 0);
  constexpr size_t kBytes = size_t{1} << 20;
  ASSERT_EQ(ftruncate(fd, kBytes), 0);
  const auto* data = static_cast<const volatile unsigned char*>(mmap(nullptr, kBytes, PROT_READ, MAP_SHARED, fd, 0));
  ASSERT_EQ(data[kBytes / 2], 0);
  ASSERT_EQ(ftruncate(fd, 10), 0);
  const auto touch = [&] {
    explain_bus_errors();
    std::exit(data[kBytes / 2]);
  };
  EXPECT_EXIT(touch(), testing::ExitedWithCode(kExitFile),
              "^sluice: .*cut\\.safetensors-.* was cut short or became unreadable while it was in use\n$");
  unlink(path.c_str());
  close(fd);
}

TEST(BusError, AnyOtherEndsTheProcess) {
  const auto raise_elsewhere = [] {
    explain_bus_errors();
    std::raise(SIGBUS);  // at no address of a file; the default applies from the second one on
    std::raise(SIGBUS);
  };
  EXPECT_EXIT(raise_elsewhere(), testing::KilledBySignal(SIGBUS), "^$");
}

}  // namespace
}  // namespace sluice::apps
