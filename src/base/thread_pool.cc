// SPDX-License-Identifier: Apache-2.0
#include "base/thread_pool.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <climits>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/usable_cores.h"

namespace sluice {

namespace {
void pause_core() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#endif
}

// How long a thread that waits looks again and again before it sleeps. Longer than most gaps between the parallel loops
// of one layer (5 to 20 us with one row), shorter than a scheduler's slice by two orders of magnitude: to wake a thread
// takes microseconds of the caller's and, where its core has gone idle, tens of its own. Two threads of a Xeon decode
// MXFP4 7 % faster than with 2 us, with 50 us not more. By the clock, as a pause takes 10 ns on one processor and 50 on
// another.
constexpr std::chrono::microseconds kSpin{20};
// Of a pool with more threads than cores: one that sleeps frees its core for another.
constexpr std::chrono::microseconds kSharedSpin{2};
// A worker that keeps the caller waiting for so long, and for more than this part of what the caller itself worked in
// the loop, does not merely have the last task: something else has its core. For a while threads then sleep as soon as
// those of a shared pool do, for the time that they spin is taken from their own share of the cores: beside one busy
// process one token of a layer took up to 11 % longer with 20 us always (bench/results/model_cpu.md). Beside it 20 to
// 80 ms lie between two such losses (the median, two threads of a Xeon), on an idle machine about a second. Every
// worker can lose its core, so the time is divided by their number: at that rate one of sixteen threads would lose its
// core every 70 ms on an idle machine.
constexpr std::chrono::microseconds kLostCore{1000};
constexpr int kLostPart = 4;  // a quarter
constexpr std::chrono::milliseconds kCrowded{300};
constexpr int kPauses = 16;  // between two looks at the clock

using Clock = std::chrono::steady_clock;

// A 32-bit value that threads wait on: a short spin, then the kernel.
class Signal {
 public:
  uint32_t load() const { return value_.load(std::memory_order_acquire); }
  void set(uint32_t v) { value_.store(v, std::memory_order_seq_cst); }
  // Returns when the value is no longer `old`.
  void wait_while(uint32_t old, Clock::time_point end) {
    do {
      for (int i = 0; i < kPauses; ++i) {
        if (load() != old) return;
        pause_core();
      }
    } while (Clock::now() < end);
    sleepers_.fetch_add(1, std::memory_order_seq_cst);
    while (value_.load(std::memory_order_seq_cst) == old)
      syscall(SYS_futex, reinterpret_cast<uint32_t*>(&value_), FUTEX_WAIT_PRIVATE, old, nullptr, nullptr, 0);
    sleepers_.fetch_sub(1, std::memory_order_relaxed);
  }
  void wake_all() {
    if (sleepers_.load(std::memory_order_seq_cst) > 0)
      syscall(SYS_futex, reinterpret_cast<uint32_t*>(&value_), FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
  }

 private:
  std::atomic<uint32_t> value_{0};
  std::atomic<int> sleepers_{0};
};
static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t), "the futex reads the bare value");
}  // namespace

struct ThreadPool::State {
  static constexpr uint32_t kClosed = 1u << 31;

  alignas(64) Signal round;  // counts parallel loops; a worker that sees a new one tries to join it
  alignas(64) Signal idle;   // 1 when the last worker has left a closed loop
  // How many workers are inside the loop, and whether it still lets workers in. The caller closes it when the tasks
  // have run out and then waits only for those inside: a worker that has no core never holds the loop up.
  alignas(64) std::atomic<uint32_t> gate{kClosed};
  alignas(64) std::atomic<int64_t> next{0};
  int64_t tasks = 0;
  const TaskBody* body = nullptr;
  std::chrono::microseconds spin{};
  std::atomic<Clock::time_point> crowded_until{};
  std::atomic<bool> stop{false};
  std::mutex error_mutex;
  std::exception_ptr error;
  std::vector<std::thread> threads;

  // Here and not in the pool's destructor: a constructor that throws half-way ends the threads that it has started.
  ~State() {
    stop.store(true, std::memory_order_relaxed);
    round.set(round.load() + 1);
    round.wake_all();
    for (auto& t : threads) t.join();
  }

  void drain(int worker) {
    for (int64_t t = next.fetch_add(1, std::memory_order_relaxed); t < tasks;
         t = next.fetch_add(1, std::memory_order_relaxed)) {
      try {
        (*body)(t, worker);
      } catch (...) {
        std::lock_guard lock(error_mutex);
        if (!error) error = std::current_exception();
        next.store(tasks, std::memory_order_relaxed);
      }
    }
  }

  Clock::time_point spin_until(Clock::time_point now) const {
    return now + (now < crowded_until.load(std::memory_order_relaxed) ? kSharedSpin : spin);
  }

  // The caller's wait for the workers inside a closed loop that it began at `begin`.
  void wait_for_workers(Clock::time_point begin) {
    const Clock::time_point start = Clock::now();
    idle.wait_while(0, spin_until(start));
    const Clock::time_point now = Clock::now();
    if (now - start > std::max<Clock::duration>(kLostCore, (start - begin) / kLostPart))
      crowded_until.store(now + kCrowded / static_cast<int>(threads.size()), std::memory_order_relaxed);
  }

  bool join() {
    uint32_t g = gate.load(std::memory_order_acquire);
    while ((g & kClosed) == 0)
      if (gate.compare_exchange_weak(g, g + 1, std::memory_order_acq_rel)) return true;
    return false;
  }

  void work(int worker) {
    for (uint32_t seen = 0;;) {
      round.wait_while(seen, spin_until(Clock::now()));
      // In this order: who sees the round of the destructor sees its stop. The other way round, a worker that is late
      // for the loop before could take that round for a loop's, and nothing would wake it again.
      seen = round.load();
      if (stop.load(std::memory_order_relaxed)) return;
      if (!join()) continue;
      drain(worker);
      if (gate.fetch_sub(1, std::memory_order_acq_rel) == (kClosed | 1u)) {
        idle.set(1);
        idle.wake_all();
      }
    }
  }
};

ThreadPool::ThreadPool(int threads) : state_(std::make_unique<State>()) {
  check(threads >= 0 && threads <= kMaxThreads, "threads is {}; accepted: 1 to {}, or 0 for all usable cores", threads,
        kMaxThreads);
  const int cores = usable_cores(), count = std::min(threads == 0 ? cores : threads, kMaxThreads);
  state_->spin = count <= cores ? kSpin : kSharedSpin;
  state_->threads.reserve(static_cast<size_t>(count));
  try {
    for (int w = 1; w < count; ++w) state_->threads.emplace_back([s = state_.get(), w] { s->work(w); });
  } catch (const std::system_error& error) {
    fail(ErrorCode::out_of_memory,
         "the system gave {} of {} threads: {}; give fewer threads, or raise the limit of processes or of memory",
         state_->threads.size() + 1, count, error.what());
  }
}

ThreadPool::~ThreadPool() = default;

int ThreadPool::size() const { return static_cast<int>(state_->threads.size()) + 1; }

void ThreadPool::parallel_for(int64_t tasks, TaskBody body) {
  if (tasks <= 0) return;
  State& s = *state_;
  if (s.threads.empty() || tasks == 1) {
    for (int64_t t = 0; t < tasks; ++t) body(t, 0);
    return;
  }
  const Clock::time_point begin = Clock::now();
  s.tasks = tasks;
  s.body = &body;
  s.error = nullptr;
  s.next.store(0, std::memory_order_relaxed);
  s.idle.set(0);
  s.gate.store(0, std::memory_order_release);
  s.round.set(s.round.load() + 1);
  s.round.wake_all();
  s.drain(0);
  if (s.gate.fetch_or(State::kClosed, std::memory_order_acq_rel) != 0) s.wait_for_workers(begin);
  if (s.error) std::rethrow_exception(s.error);
}

}  // namespace sluice
