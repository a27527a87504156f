// SPDX-License-Identifier: Apache-2.0
#include "engine/mask_worker.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>

namespace sluice::engine {
namespace {

TEST(MaskWorker, WaitReturnsAfterTheWork) {
  MaskWorker worker;
  worker.wait();
  std::atomic<int> done{0};
  for (int i = 1; i <= 100; ++i) {
    worker.start([&] { ++done; });
    worker.wait();
    ASSERT_EQ(done, i);
  }
}

// In a child whose address space is used up: the stack of a thread cannot fit.
TEST(MaskWorker, WithoutAThreadTheWorkIsDoneInStart) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer's own tables do not fit under a limit of address space";
#endif
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);  // a wait() that does not return
    const rlimit limit{1, RLIM_INFINITY};
    if (setrlimit(RLIMIT_AS, &limit) != 0) _exit(2);
    MaskWorker worker;
    int done = 0;
    worker.start([&] { ++done; });
    worker.wait();
    _exit(done == 1 ? 0 : 3);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status)) << "ended by signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace sluice::engine
