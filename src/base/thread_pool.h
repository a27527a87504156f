// SPDX-License-Identifier: Apache-2.0
// A pool that shares one machine politely: tasks are taken one by one from a counter, so a thread
// that lost its core delays only its own task, and idle threads spin for 20 microseconds, or for 2 where one has lost
// its core lately, then sleep.
// OpenMP's barriers spin for milliseconds and split statically: with one other busy process on the
// machine that costs two-thread decode 97 % of its speed (llama.cpp: 186 -> 4.1 tokens/s).
// Written by hand for that, with futexes: std::atomic::wait of libstdc++ adds a spin of its own with sched_yield(), and
// counts its sleepers in 16 places that all waits of the process share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>

namespace sluice {

// A reference to a callable body(int64_t task, int worker). Unlike std::function it never allocates, whatever the
// callable captures; it must not outlive the callable.
class TaskBody {
 public:
  template <class F>
  requires(!std::is_same_v<std::remove_cvref_t<F>, TaskBody>)
      TaskBody(F&& body)  // NOLINT: implicit, so that callers pass a lambda
      : object_(const_cast<void*>(static_cast<const void*>(&body))), call_([](void* object, int64_t task, int worker) {
          (*static_cast<std::remove_reference_t<F>*>(object))(task, worker);
        }) {}
  void operator()(int64_t task, int worker) const { call_(object_, task, worker); }

 private:
  void* object_;
  void (*call_)(void*, int64_t, int);
};

class ThreadPool {
 public:
  // More than any one machine has today; a larger number is a mistake, and each thread reserves a stack.
  static constexpr int kMaxThreads = 4096;

  // threads = 0 takes every core that this process may run on. The caller's thread is one of them. Throws
  // invalid_argument outside [0, kMaxThreads], and out_of_memory when the system gives fewer threads (a limit of
  // processes or of memory); then none is left.
  explicit ThreadPool(int threads = 0);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const;

  // Runs body(task, worker) once for each task in [0, tasks), worker in [0, size()). Returns when all
  // are done; rethrows the first exception. Not re-entrant: one caller at a time.
  void parallel_for(int64_t tasks, TaskBody body);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace sluice
