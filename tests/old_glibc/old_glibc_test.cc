// SPDX-License-Identifier: Apache-2.0
// What cmake/old_glibc.c has in place of glibc's, linked here as into the wheel's library, beside system calls and
// clocks.
#include <dlfcn.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <condition_variable>
#include <mutex>
#include <random>
#include <set>
#include <stdexcept>
#include <thread>

extern "C" {
long __isoc23_strtol(const char*, char**, int);
unsigned long long __isoc23_strtoull(const char*, char**, int);
int __isoc23_sscanf(const char*, const char*, ...);
}

namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

TEST(OldGlibc, ExceptionsFindTheirHandlers) {
  const auto thrower = [](int depth, const auto& self) -> int {
    if (depth == 0) throw std::runtime_error("found");
    return self(depth - 1, self) + 1;
  };
  for (int i = 0; i < 3; ++i) {
    try {
      thrower(20, thrower);
      FAIL();
    } catch (const std::runtime_error& error) {
      EXPECT_STREQ(error.what(), "found");
    }
  }
  std::exception_ptr passed;
  std::thread([&] {
    try {
      throw std::logic_error("of another thread");
    } catch (...) {
      passed = std::current_exception();
    }
  }).join();
  EXPECT_THROW(std::rethrow_exception(passed), std::logic_error);
}

TEST(OldGlibc, AWaitEndsByTheMonotonicClock) {
  std::mutex mutex;
  std::condition_variable condition;
  std::unique_lock lock(mutex);
  const auto begin = steady_clock::now();
  EXPECT_EQ(condition.wait_until(lock, begin - milliseconds(5)), std::cv_status::timeout);
  EXPECT_EQ(condition.wait_until(lock, begin + milliseconds(40)), std::cv_status::timeout);
  EXPECT_GE(steady_clock::now(), begin + milliseconds(40));

  bool ready = false;
  std::thread other([&] {
    std::lock_guard hold(mutex);
    ready = true;
    condition.notify_one();
  });
  EXPECT_TRUE(condition.wait_for(lock, std::chrono::minutes(1), [&] { return ready; }));
  lock.unlock();
  other.join();
}

TEST(OldGlibc, FilesHaveTheirSizesAndKinds) {
  char folder[] = "/tmp/old_glibc_XXXXXX";
  ASSERT_NE(mkdtemp(folder), nullptr);
  const std::string file = std::string(folder) + "/file", link = std::string(folder) + "/link";
  const int fd = open(file.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600);
  ASSERT_GE(fd, 0);
  ASSERT_EQ(write(fd, "12345", 5), 5);
  ASSERT_EQ(symlink("file", link.c_str()), 0);
  struct stat of {};
  struct statx exact {};
  ASSERT_EQ(statx(AT_FDCWD, file.c_str(), 0, STATX_BASIC_STATS, &exact), 0);
  ASSERT_EQ(fstat(fd, &of), 0);
  EXPECT_EQ(of.st_size, 5);
  EXPECT_EQ(of.st_ino, exact.stx_ino);
  EXPECT_EQ(of.st_mtim.tv_sec, exact.stx_mtime.tv_sec);
  EXPECT_TRUE(S_ISREG(of.st_mode));
  ASSERT_EQ(stat(link.c_str(), &of), 0);
  EXPECT_EQ(of.st_ino, exact.stx_ino);
  ASSERT_EQ(lstat(link.c_str(), &of), 0);
  EXPECT_TRUE(S_ISLNK(of.st_mode));
  errno = 0;
  EXPECT_EQ(stat("/nonexistent", &of), -1);
  EXPECT_EQ(errno, ENOENT);
  close(fd);
  unlink(link.c_str());
  unlink(file.c_str());
  rmdir(folder);
}

TEST(OldGlibc, RandomWordsDiffer) {
  std::random_device device;
  std::set<unsigned> seen;
  for (int i = 0; i < 16; ++i) seen.insert(device());
  EXPECT_GT(seen.size(), 14u);
}

TEST(OldGlibc, NumbersAreRead) {
  char* end = nullptr;
  EXPECT_EQ(__isoc23_strtol("-0x1f,", &end, 0), -31);
  EXPECT_EQ(*end, ',');
  EXPECT_EQ(__isoc23_strtoull("18446744073709551615", nullptr, 10), UINT64_MAX);
  int a = 0, b = 0;
  EXPECT_EQ(__isoc23_sscanf("12 of 34", "%d of %d", &a, &b), 2);
  EXPECT_EQ(a + b, 46);
}

TEST(OldGlibc, MovedFunctionsAreReached) {
  EXPECT_EQ(gettid(), static_cast<pid_t>(syscall(SYS_gettid)));
  volatile double x = 0.5;
  EXPECT_EQ(std::exp(x), 1.6487212707001282);
  EXPECT_EQ(std::log(x), -0.6931471805599453);
  EXPECT_EQ(std::pow(x, 3), 0.125);
  EXPECT_EQ(std::fmod(x, 0.375), 0.125);
  void* self = dlopen(nullptr, RTLD_LAZY);
  ASSERT_NE(self, nullptr);
  EXPECT_NE(dlsym(self, "getpid"), nullptr);
  dlclose(self);
  std::once_flag once;
  int calls = 0;
  for (int i = 0; i < 3; ++i) std::call_once(once, [&] { ++calls; });
  EXPECT_EQ(calls, 1);
}

}  // namespace
