// SPDX-License-Identifier: Apache-2.0
#include "grammar/compile_queue.h"

#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <new>

#include "base/error.h"

namespace sluice::grammar {

namespace {
// Address space, of which a compilation touches what it needs: it recurses as deep as the grammar has rules. A chain of
// 10,000 rules takes 20 MB of it.
constexpr size_t kStackBytes = size_t{256} << 20;
constexpr int kNicer = 5;  // than who asked for it: what runs already comes first
constexpr int kNicest = 19;

void* run_task(void* given) {
  const std::unique_ptr<std::function<void()>> task(static_cast<std::function<void()>*>(given));
  ::setpriority(PRIO_PROCESS, 0, ::getpriority(PRIO_PROCESS, 0) + kNicer);  // of this thread, on Linux
  (*task)();
  return nullptr;
}

void start_thread(std::function<void()> task) {
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, kStackBytes);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  auto owned = std::make_unique<std::function<void()>>(std::move(task));
  pthread_t thread;
  const int error = pthread_create(&thread, &attributes, run_task, owned.get());
  pthread_attr_destroy(&attributes);
  if (error != 0) fail(ErrorCode::out_of_memory, "no thread to compile a grammar on: error {}", error);
  owned.release();  // the thread's now
}

Clock::time_point after(Clock::time_point time, double seconds) {
  constexpr double kLong = 1e9;  // more does not fit a duration
  return time + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(std::min(seconds, kLong)));
}

std::string key_of(const Source& s) {
  std::string key = fmt::format("{}{}", static_cast<int>(s.kind), s.closed ? 'c' : 'o');
  for (const std::string& tag : s.tags) key += fmt::format("{} {}", tag.size(), tag);
  return key.append("\n").append(s.text);
}
}  // namespace

// With the mutex held, as all that takes a job.
double CompileQueue::seconds_of(const Job& job) const {
  timespec used{};
  if (job.thread == 0 || ::clock_gettime(job.processor, &used) != 0) return 0;
  return static_cast<double>(used.tv_sec) + 1e-9 * static_cast<double>(used.tv_nsec);
}

Clock::time_point CompileQueue::end_of_patience(const Job& job) const { return after(job.asked, limits_.patience); }

// It cannot use up its time earlier than this, give or take what keeps who waits from asking all the time.
Clock::time_point CompileQueue::ask_again(const Job& job) const {
  constexpr double kLeast = 0.005;
  return std::min(end_of_patience(job), after(Clock::now(), std::max(limits_.seconds - seconds_of(job), kLeast)));
}

// With the mutex held. Null: nothing is known, or it is on its way.
GrammarPtr CompileQueue::look_up(const std::string& key, const Source& source) {
  if (const auto at = by_key_.find(key); at != by_key_.end()) {
    known_.splice(known_.begin(), known_, at->second);
    const Known& known = known_.front();
    if (known.grammar) return known.grammar;
    ++stats_.refused;
    fail(ErrorCode::invalid_argument, "the {} cannot be compiled: {}", to_string(source.kind), known.error);
  }
  const auto job = jobs_.find(key);
  if (job == jobs_.end() || !job->second.running) return nullptr;
  const bool slow = takes_too_long(job->second);
  if (!slow && !is_given_up(job->second)) return nullptr;
  set_aside(job->second);
  if (!slow)
    fail(ErrorCode::busy, "the {} is not compiled within {} s; try again later", to_string(source.kind),
         limits_.patience);
  ++stats_.refused;
  fail(ErrorCode::invalid_argument, "the {} of {} bytes takes longer than {} s to compile; a simpler one is needed",
       to_string(source.kind), source.text.size(), limits_.seconds);
}

GrammarPtr CompileQueue::find_or_begin(Lock& lock, const std::string& key, const Source& source) {
  if (GrammarPtr found = look_up(key, source)) return found;
  if (const auto job = jobs_.find(key); job != jobs_.end()) {
    if (is_given_up(job->second)) job->second.asked = Clock::now();  // it is wanted again
    return nullptr;
  }
  lock.unlock();
  Prepared prepared;
  try {
    prepared = prepare(source);
  } catch (...) {
    lock.lock();
    ++stats_.refused;
    throw;
  }
  lock.lock();
  if (GrammarPtr found = look_up(key, source)) return found;
  if (jobs_.count(key) > 0) return nullptr;
  if (waiting_.size() >= limits_.waiting)
    fail(ErrorCode::busy, "{} grammars wait to be compiled; try again later", waiting_.size());
  jobs_.emplace(key, Job{.source = source, .prepared = std::move(prepared), .asked = Clock::now()});
  waiting_.push_back(key);
  start_some();
  return nullptr;
}

GrammarPtr CompileQueue::try_compile(const Source& source) {
  const std::string key = key_of(source);
  Lock lock(mutex_);
  GrammarPtr found = find_or_begin(lock, key, source);
  if (found) ++stats_.hits;
  return found;
}

GrammarPtr CompileQueue::compile(const Source& source) {
  const std::string key = key_of(source);
  Lock lock(mutex_);
  if (GrammarPtr found = find_or_begin(lock, key, source)) {
    ++stats_.hits;
    return found;
  }
  for (auto job = jobs_.find(key); job != jobs_.end() && !is_given_up(job->second); job = jobs_.find(key)) {
    changed_.wait_until(lock, ask_again(job->second));
    if (GrammarPtr found = look_up(key, source)) return found;
  }
  fail(ErrorCode::busy, "{} grammars are being compiled and take long; try again later", running_ + late_);
}

std::optional<Clock::time_point> CompileQueue::pending_until(const Source& source) const {
  const Lock lock(mutex_);
  const auto job = jobs_.find(key_of(source));
  if (job == jobs_.end() || takes_too_long(job->second) || is_given_up(job->second)) return std::nullopt;
  return ask_again(job->second);
}

void CompileQueue::on_change(std::function<void()> call) {
  const std::lock_guard lock(listener_mutex_);
  listener_ = std::move(call);
}

GrammarCompiler::Stats CompileQueue::stats() const {
  const Lock lock(mutex_);
  GrammarCompiler::Stats out = stats_;
  out.pending = jobs_.size();
  return out;
}

// With the mutex held. What has taken too long cannot be stopped, but need not keep others waiting.
void CompileQueue::set_aside(Job& job) {
  if (job.late || late_ >= limits_.late) return;
  job.late = true;
  --running_;
  ++late_;
  if (job.thread != 0) ::setpriority(PRIO_PROCESS, static_cast<id_t>(job.thread), kNicest);
  try {
    start_some();
  } catch (const std::exception&) {  // no thread: who waits for that one finds nothing
  }
}

// With the mutex held. Those that have waited too long are wanted by nobody any more.
void CompileQueue::start_some() {
  while (running_ < limits_.at_once && !waiting_.empty()) {
    const auto job = jobs_.find(waiting_.front());
    waiting_.pop_front();
    if (is_given_up(job->second)) {
      jobs_.erase(job);
      continue;
    }
    try {
      start_thread([self = shared_from_this(), key = job->first, source = job->second.source,
                    prepared = std::move(job->second.prepared)] { self->run(key, source, prepared); });
    } catch (...) {
      jobs_.erase(job);
      throw;
    }
    job->second.running = true;
    ++running_;
  }
}

void CompileQueue::run(const std::string& key, const Source& source, const Prepared& prepared) {
  {
    const Lock lock(mutex_);
    Job& job = jobs_.at(key);
    if (::pthread_getcpuclockid(::pthread_self(), &job.processor) == 0) job.thread = ::gettid();
  }
  Known known{key, nullptr, "", 0};
  bool remember = true;
  try {
    Compiled made = make_(source, prepared);
    known.grammar = std::move(made.grammar);
    known.bytes = made.bytes;
  } catch (const std::bad_alloc&) {  // of this time, not of this source
    remember = false;
  } catch (const std::exception& e) {
    known.error = e.what();
  }
  {
    const Lock lock(mutex_);
    const auto job = jobs_.find(key);
    --(job->second.late ? late_ : running_);
    jobs_.erase(job);
    if (remember) keep(std::move(known));
    try {
      start_some();
    } catch (const std::exception&) {  // no thread: who waits for that one finds nothing
    }
    changed_.notify_all();
  }
  const std::lock_guard lock(listener_mutex_);
  if (listener_) listener_();
}

// With the mutex held. The newest always stays, however large.
void CompileQueue::keep(Known known) {
  if (known.grammar) ++stats_.compiled;
  known.bytes += known.key.size() + known.error.size();
  stats_.cached_bytes += known.bytes;
  known_.push_front(std::move(known));
  by_key_[known_.front().key] = known_.begin();
  while (known_.size() > 1 && (known_.size() > limits_.cached_grammars || stats_.cached_bytes > limits_.cached_bytes)) {
    stats_.cached_bytes -= known_.back().bytes;
    by_key_.erase(known_.back().key);
    known_.pop_back();
  }
  stats_.cached = known_.size();
}

}  // namespace sluice::grammar
