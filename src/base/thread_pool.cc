// SPDX-License-Identifier: Apache-2.0
#include "base/thread_pool.h"

#include <sched.h>

#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "base/error.h"

namespace sluice {

namespace {
int usable_cores() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
  return static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
}
}  // namespace

struct ThreadPool::State {
  std::mutex mutex;
  std::condition_variable wake, done;
  uint64_t generation = 0;
  bool stop = false;
  int64_t tasks = 0;
  std::atomic<int64_t> next{0};
  int working = 0;
  const std::function<void(int64_t, int)>* body = nullptr;
  std::exception_ptr error;
  std::vector<std::thread> threads;

  void drain(int worker) {
    for (int64_t t = next.fetch_add(1); t < tasks; t = next.fetch_add(1)) {
      try {
        (*body)(t, worker);
      } catch (...) {
        std::lock_guard lock(mutex);
        if (!error) error = std::current_exception();
        next.store(tasks);
      }
    }
  }
};

ThreadPool::ThreadPool(int threads) : state_(std::make_unique<State>()) {
  check(threads >= 0, "threads is {}; it must be 0 (all usable cores) or more", threads);
  const int count = threads == 0 ? usable_cores() : threads;
  for (int w = 1; w < count; ++w) {
    state_->threads.emplace_back([s = state_.get(), w] {
      uint64_t seen = 0;
      for (;;) {
        {
          std::unique_lock lock(s->mutex);
          s->wake.wait(lock, [&] { return s->stop || s->generation != seen; });
          if (s->stop) return;
          seen = s->generation;
        }
        s->drain(w);
        std::lock_guard lock(s->mutex);
        if (--s->working == 0) s->done.notify_one();
      }
    });
  }
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard lock(state_->mutex);
    state_->stop = true;
  }
  state_->wake.notify_all();
  for (auto& t : state_->threads) t.join();
}

int ThreadPool::size() const { return static_cast<int>(state_->threads.size()) + 1; }

void ThreadPool::parallel_for(int64_t tasks, const std::function<void(int64_t, int)>& body) {
  if (tasks <= 0) return;
  State& s = *state_;
  if (s.threads.empty() || tasks == 1) {
    for (int64_t t = 0; t < tasks; ++t) body(t, 0);
    return;
  }
  {
    std::lock_guard lock(s.mutex);
    s.tasks = tasks;
    s.body = &body;
    s.error = nullptr;
    s.next.store(0);
    s.working = static_cast<int>(s.threads.size());
    ++s.generation;
  }
  s.wake.notify_all();
  s.drain(0);
  std::unique_lock lock(s.mutex);
  s.done.wait(lock, [&] { return s.working == 0; });
  if (s.error) std::rethrow_exception(s.error);
}

}  // namespace sluice
