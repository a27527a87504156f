// SPDX-License-Identifier: Apache-2.0
// Which grammars are compiled, which wait for it, and which have been: a compilation cannot be interrupted and may take
// seconds, so few run at once, each on a thread of its own, and equal ones only once.
#pragma once

#include <time.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "grammar/compiler.h"

namespace sluice::grammar {

class CompileQueue : public std::enable_shared_from_this<CompileQueue> {
 public:
  struct Compiled {
    GrammarPtr grammar;
    size_t bytes = 0;
  };
  // Called on the threads of the queue. What it throws says why the source is refused.
  using Make = std::function<Compiled(const Source&, const Prepared&)>;

  // Held in a shared_ptr: threads that still compile keep it alive when its owner has let go of it.
  CompileQueue(Make make, CompilerLimits limits) : make_(std::move(make)), limits_(limits) {}

  // These do what GrammarCompiler's functions of the same names say.
  GrammarPtr compile(const Source& source);
  GrammarPtr try_compile(const Source& source);
  std::optional<Clock::time_point> pending_until(const Source& source) const;
  void on_change(std::function<void()> call);
  GrammarCompiler::Stats stats() const;

 private:
  struct Job {
    Source source;
    Prepared prepared;
    bool running = false, late = false;
    int thread = 0;         // the system's number of it, once it runs
    clockid_t processor{};  // the thread's time on it
    Clock::time_point asked;
  };
  struct Known {
    std::string key;
    GrammarPtr grammar;  // null: refused
    std::string error;
    size_t bytes = 0;
  };
  using Lock = std::unique_lock<std::mutex>;

  double seconds_of(const Job& job) const;
  bool takes_too_long(const Job& job) const { return job.running && seconds_of(job) >= limits_.seconds; }
  bool is_given_up(const Job& job) const { return Clock::now() >= end_of_patience(job); }
  Clock::time_point end_of_patience(const Job& job) const;
  Clock::time_point ask_again(const Job& job) const;
  GrammarPtr look_up(const std::string& key, const Source& source);
  GrammarPtr find_or_begin(Lock& lock, const std::string& key, const Source& source);
  void set_aside(Job& job);
  void start_some();
  void run(const std::string& key, const Source& source, const Prepared& prepared);
  void keep(Known known);

  const Make make_;
  const CompilerLimits limits_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, Job> jobs_;
  std::deque<std::string> waiting_;  // keys of jobs
  int running_ = 0, late_ = 0;
  std::list<Known> known_;  // the most recent first
  std::map<std::string, std::list<Known>::iterator, std::less<>> by_key_;
  GrammarCompiler::Stats stats_;
  std::mutex listener_mutex_;
  std::function<void()> listener_;
};

}  // namespace sluice::grammar
