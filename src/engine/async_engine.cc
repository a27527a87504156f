// SPDX-License-Identifier: Apache-2.0
#include "engine/async_engine.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <future>
#include <mutex>
#include <thread>

#include "engine/event_queue.h"

namespace sluice::engine {

struct EventStream::State {
  explicit State(int64_t choices) : events(choices) {}
  EventQueue events;
  RequestId id = 0;
};

EventStream::EventStream(AsyncEngine& engine, std::shared_ptr<State> state)
    : engine_(engine), state_(std::move(state)) {}
EventStream::~EventStream() {
  if (!done()) cancel();
}
RequestId EventStream::id() const { return state_->id; }
void EventStream::cancel() { engine_.cancel(state_->id); }
bool EventStream::done() const { return state_->events.done(); }

std::optional<Event> EventStream::next(std::chrono::milliseconds timeout) {
  std::optional<EventQueue::Entry> entry = state_->events.next(timeout);
  if (!entry) return std::nullopt;
  return std::move(entry->event);
}

namespace {
// A held engine runs no steps, which look at the time limits of requests; they act this late there.
constexpr std::chrono::milliseconds kHeldLimits{50};
}  // namespace

struct AsyncEngine::Impl {
  struct Submission {
    Request request;
    Sink sink;
    RequestId id;
  };

  explicit Impl(std::unique_ptr<Engine> e)
      : engine(std::move(e)),
        config(engine->config()),
        model_info(engine->model_info()),
        limits(engine->limits()),
        metrics(engine->metrics()) {}

  void loop();
  void start(const Submission& s);
  void apply(std::unique_lock<std::mutex>& lock);
  void rest(std::unique_lock<std::mutex>& lock);
  void expire(std::unique_lock<std::mutex>& lock);
  void end(std::unique_lock<std::mutex>& lock);
  void count(const Metrics& now);
  void count_now();
  bool has_commands() const { return !submissions.empty() || !cancellations.empty() || !jobs.empty(); }

  std::unique_ptr<Engine> engine;  // touched by the thread alone
  const EngineConfig config;
  const model::ModelInfo model_info;  // a copy: replace_model() runs on the engine's thread
  const Limits limits;

  mutable std::mutex mutex;
  std::condition_variable wake, idle_changed;
  std::vector<Submission> submissions;
  std::vector<RequestId> cancellations;
  std::vector<std::packaged_task<void(Engine*)>> jobs;  // null: too late, the caller gets busy
  Metrics metrics;      // as of the last step, and of the last answer's beginning or end
  int64_t waiting = 0;  // choices that `metrics` do not have yet
  int64_t started = 0;  // of them, what the engine has; of the thread
  int64_t refused = 0;
  RequestId last_id = 0;
  std::string fault;
  std::function<void()> on_fault;
  bool draining = false, idle = true;
  unsigned holds = 0;
  bool asleep = false;                 // the thread waits for something to do
  std::atomic<bool> stopping = false;  // set under the mutex; read without it between two jobs
  Clock::time_point last_step = Clock::now();
  std::thread thread;
};

AsyncEngine::AsyncEngine(std::unique_ptr<Engine> engine) : impl_(std::make_unique<Impl>(std::move(engine))) {
  // So that whoever has an answer does not find it counted as running or waiting.
  impl_->engine->on_change([impl = impl_.get()] { impl->count_now(); });
  impl_->thread = std::thread([this] { impl_->loop(); });
}
AsyncEngine::~AsyncEngine() { stop(); }

// With the mutex.
void AsyncEngine::Impl::count(const Metrics& now) {
  metrics = now;
  waiting -= std::exchange(started, 0);
}

void AsyncEngine::Impl::count_now() {
  const Metrics now = engine->metrics();
  const std::lock_guard lock(mutex);
  count(now);
}

void AsyncEngine::Impl::loop() {
  std::unique_lock lock(mutex);
  for (;;) {
    rest(lock);
    if (idle) last_step = Clock::now();
    idle = false;
    apply(lock);
    if (stopping) break;
    if (holds != 0) {
      expire(lock);
      idle = engine->idle() && !has_commands();
      continue;
    }
    lock.unlock();
    bool worked = true;
    try {
      worked = engine->step();
    } catch (const std::exception&) {  // out of memory between the steps' own guards: give back what there is
      engine->cancel_all();
    }
    const Metrics now = engine->metrics();
    lock.lock();
    if (fault.empty() && !engine->fault().empty()) {
      fault = engine->fault();
      if (const auto then = std::exchange(on_fault, {})) then();
    }
    count(now);
    last_step = Clock::now();
    idle = !worked && !has_commands();
    if (idle) idle_changed.notify_all();
  }
  end(lock);
}

// Until there is something to do.
void AsyncEngine::Impl::rest(std::unique_lock<std::mutex>& lock) {
  const auto ready = [&] { return stopping || has_commands() || (!idle && holds == 0); };
  asleep = true;
  if (holds != 0) idle_changed.notify_all();
  if (holds != 0 && engine->timed())
    wake.wait_for(lock, kHeldLimits, ready);
  else
    wake.wait(lock, ready);
  asleep = false;
}

// Of an engine that is held: its requests wait, but no longer than they may.
void AsyncEngine::Impl::expire(std::unique_lock<std::mutex>& lock) {
  if (!engine->timed()) return;
  lock.unlock();
  try {
    engine->expire();
  } catch (const std::exception&) {  // as for a step
    engine->cancel_all();
  }
  const Metrics now = engine->metrics();
  lock.lock();
  count(now);
}

// A job may take minutes (a reload). Requests and jobs that arrive meanwhile arrive after the loop has ended, and each
// of their callers waits for an answer. Nothing is added from here on, as `stopping` is set.
void AsyncEngine::Impl::end(std::unique_lock<std::mutex>& lock) {
  const auto new_requests = std::exchange(submissions, {});
  auto work = std::exchange(jobs, {});
  cancellations.clear();
  lock.unlock();
  for (const Submission& s : new_requests) start(s);  // so that they end as cancelled, like all others
  engine->cancel_all();
  for (auto& job : work) job(nullptr);
  const Metrics now = engine->metrics();
  lock.lock();
  count(now);
  idle = true;
  idle_changed.notify_all();
}

// submit() has checked the request; what is left to go wrong is memory.
void AsyncEngine::Impl::start(const Submission& s) {
  Event event;
  event.request = s.id;
  event.reason = FinishReason::error;
  started += s.request.params.n;
  try {
    engine->add(s.request, s.sink, s.id, true);
    return;
  } catch (const std::exception& error) {
    event.error = error.what();
  }
  try {
    count_now();
    for (event.choice = 0; event.choice < s.request.params.n; ++event.choice) s.sink(event);
  } catch (...) {  // the sink of a request that has ended failed
  }
}

// Commands in the order: new requests, jobs, cancellations, so that a cancellation finds its request.
void AsyncEngine::Impl::apply(std::unique_lock<std::mutex>& lock) {
  const auto new_requests = std::exchange(submissions, {});
  const auto cancelled = std::exchange(cancellations, {});
  auto work = std::exchange(jobs, {});
  lock.unlock();
  for (const Submission& s : new_requests) start(s);
  for (auto& job : work) job(stopping ? nullptr : engine.get());
  for (const RequestId id : cancelled) engine->cancel(id);
  const Metrics now = engine->metrics();
  lock.lock();
  count(now);
}

RequestId AsyncEngine::submit(Request request, Sink sink) {
  std::vector<Request> requests;
  std::vector<Sink> sinks;
  requests.push_back(std::move(request));
  sinks.push_back(std::move(sink));
  return submit(std::move(requests), std::move(sinks)).front();
}

std::vector<RequestId> AsyncEngine::submit(std::vector<Request> requests, std::vector<Sink> sinks) {
  check(requests.size() == sinks.size(), "{} requests have {} sinks; accepted: as many", requests.size(), sinks.size());
  for (const Request& r : requests) validate(r, impl_->limits);
  std::vector<RequestId> ids;
  ids.reserve(requests.size());
  const std::lock_guard lock(impl_->mutex);
  if (impl_->draining || impl_->stopping) fail(ErrorCode::busy, "the engine is stopping; no new requests are taken");
  if (!impl_->fault.empty()) fail(ErrorCode::cuda, "the device has failed: {}", impl_->fault);
  const int64_t queued = impl_->metrics.queued + impl_->waiting;
  if (queued >= impl_->config.max_queued) {
    impl_->refused += static_cast<int64_t>(requests.size());
    fail(ErrorCode::busy, "the queue is full: {} answers wait; try again later", queued);
  }
  impl_->submissions.reserve(impl_->submissions.size() + requests.size());  // no failure half-way
  for (size_t i = 0; i < requests.size(); ++i) {
    ids.push_back(++impl_->last_id);
    impl_->waiting += requests[i].params.n;
    impl_->submissions.push_back({std::move(requests[i]), std::move(sinks[i]), ids.back()});
  }
  impl_->wake.notify_one();
  return ids;
}

std::unique_ptr<EventStream> AsyncEngine::submit(Request request) {
  auto state = std::make_shared<EventStream::State>(request.params.n);
  state->id = submit(std::move(request), [state](const Event& event) { state->events.push(0, event); });
  return std::unique_ptr<EventStream>(new EventStream(*this, std::move(state)));
}

void AsyncEngine::cancel(RequestId id) {
  const std::lock_guard lock(impl_->mutex);
  if (impl_->stopping) return;  // everything is cancelled
  impl_->cancellations.push_back(id);
  impl_->wake.notify_one();
}

void AsyncEngine::run(const std::function<void(Engine&)>& job) {
  std::packaged_task<void(Engine*)> task([&job](Engine* engine) {
    if (engine == nullptr) fail(ErrorCode::busy, "the engine is stopping");
    job(*engine);
  });
  std::future<void> done = task.get_future();
  {
    const std::lock_guard lock(impl_->mutex);
    if (impl_->stopping) fail(ErrorCode::busy, "the engine is stopping");
    impl_->jobs.push_back(std::move(task));
    impl_->wake.notify_one();
  }
  done.get();
}

void AsyncEngine::hold(Hold reason) {
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->holds |= static_cast<unsigned>(reason);
  }
  run([](Engine&) {});  // after the step that may be running
}

void AsyncEngine::release(Hold reason) {
  const std::lock_guard lock(impl_->mutex);
  impl_->holds &= ~static_cast<unsigned>(reason);
  impl_->wake.notify_one();
}

bool AsyncEngine::held(Hold reason) const {
  const std::lock_guard lock(impl_->mutex);
  return (impl_->holds & static_cast<unsigned>(reason)) != 0;
}

Limits AsyncEngine::limits() const { return impl_->limits; }
const EngineConfig& AsyncEngine::config() const { return impl_->config; }
const model::ModelInfo& AsyncEngine::model_info() const { return impl_->model_info; }

Metrics AsyncEngine::metrics() const {
  const std::lock_guard lock(impl_->mutex);
  Metrics m = impl_->metrics;
  m.queued += impl_->waiting;
  m.waiting += impl_->waiting;
  m.requests_refused += impl_->refused;
  return m;
}

double AsyncEngine::stalled_seconds() const {
  const std::lock_guard lock(impl_->mutex);
  if (impl_->idle || impl_->holds != 0) return 0;
  return std::chrono::duration<double>(Clock::now() - impl_->last_step).count();
}

std::string AsyncEngine::fault() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->fault;
}

void AsyncEngine::on_fault(std::function<void()> then) {
  const std::lock_guard lock(impl_->mutex);
  if (impl_->fault.empty())
    impl_->on_fault = std::move(then);
  else
    then();
}

bool AsyncEngine::drain(std::chrono::milliseconds timeout) {
  std::unique_lock lock(impl_->mutex);
  impl_->draining = true;
  const auto finished = [&] { return impl_->idle && !impl_->has_commands(); };
  const auto stuck = [&] { return impl_->holds != 0 && impl_->asleep && !impl_->has_commands(); };
  impl_->idle_changed.wait_for(lock, timeout, [&] { return finished() || stuck(); });
  return finished();
}

void AsyncEngine::stop() {
  {
    const std::lock_guard lock(impl_->mutex);
    if (impl_->stopping) return;
    impl_->stopping = true;
    impl_->wake.notify_one();
  }
  impl_->thread.join();
}

}  // namespace sluice::engine
