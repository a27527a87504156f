// SPDX-License-Identifier: Apache-2.0
// Code that runs in a child process, so that what it changes of the process ends with it.
#pragma once

#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>

namespace sluice::io {

// Runs `body` in a child process, which ends with its result.
template <class Body>
int in_child(const Body& body) {
  const pid_t child = fork();
  if (child == 0) _exit(body());
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

constexpr int kNoMount = 77;  // in_child_with_mount(): nothing may be mounted here

// The same where `path` is a mount point, which only the child sees.
template <class Body>
int in_child_with_mount(const std::filesystem::path& path, const Body& body) {
  return in_child([&]() -> int {
    if (unshare(geteuid() == 0 ? CLONE_NEWNS : CLONE_NEWUSER | CLONE_NEWNS) != 0 ||
        mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        mount(path.c_str(), path.c_str(), nullptr, MS_BIND, nullptr) != 0)
      return kNoMount;
    return body();
  });
}

}  // namespace sluice::io
