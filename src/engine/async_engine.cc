// SPDX-License-Identifier: Apache-2.0
#include "engine/async_engine.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <future>
#include <mutex>
#include <thread>

namespace sluice::engine {

namespace {
void merge(Event& into, const Event& more) {
  const auto append = [](auto& to, const auto& from) { to.insert(to.end(), from.begin(), from.end()); };
  append(into.tokens, more.tokens);
  append(into.logprobs, more.logprobs);
  append(into.prompt_logprobs, more.prompt_logprobs);
  into.text += more.text;
  into.reason = more.reason;
  into.stop_token = more.stop_token;
  into.stop_string = more.stop_string;
  into.error = more.error;
  into.usage = more.usage;
}
}  // namespace

struct Stream::State {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Event> events;  // at most one a choice
  RequestId id = 0;
  int64_t open = 0;  // choices whose last event was not taken

  void push(const Event& event) {
    {
      const std::lock_guard lock(mutex);
      const auto same =
          std::find_if(events.begin(), events.end(), [&](const Event& e) { return e.choice == event.choice; });
      if (same != events.end())
        merge(*same, event);
      else
        events.push_back(event);
    }
    changed.notify_one();
  }
};

Stream::Stream(AsyncEngine& engine, std::shared_ptr<State> state) : engine_(engine), state_(std::move(state)) {}
Stream::~Stream() {
  if (!done()) cancel();
}
RequestId Stream::id() const { return state_->id; }
void Stream::cancel() { engine_.cancel(state_->id); }
bool Stream::done() const {
  const std::lock_guard lock(state_->mutex);
  return state_->open == 0;
}

std::optional<Event> Stream::next(std::chrono::milliseconds timeout) {
  std::unique_lock lock(state_->mutex);
  const auto ready = [&] { return !state_->events.empty() || state_->open == 0; };
  if (!state_->changed.wait_for(lock, timeout, ready) || state_->events.empty()) return std::nullopt;
  Event event = std::move(state_->events.front());
  state_->events.pop_front();
  if (event.reason != FinishReason::none) --state_->open;
  return event;
}

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
  bool has_commands() const { return !submissions.empty() || !cancellations.empty() || !jobs.empty(); }

  std::unique_ptr<Engine> engine;  // touched by the thread alone
  const EngineConfig config;
  const model::ModelInfo model_info;  // a copy: replace_model() runs on the engine's thread
  const Limits limits;

  mutable std::mutex mutex;
  std::condition_variable wake, idle_changed;
  std::vector<Submission> submissions;
  std::vector<RequestId> cancellations;
  std::vector<std::packaged_task<void(Engine&)>> jobs;
  Metrics metrics;      // after the last step
  int64_t waiting = 0;  // choices in `submissions`
  int64_t refused = 0;
  RequestId last_id = 0;
  bool draining = false, stopping = false, idle = true;
  Clock::time_point last_step = Clock::now();
  std::thread thread;
};

AsyncEngine::AsyncEngine(std::unique_ptr<Engine> engine) : impl_(std::make_unique<Impl>(std::move(engine))) {
  impl_->thread = std::thread([this] { impl_->loop(); });
}
AsyncEngine::~AsyncEngine() { stop(); }

void AsyncEngine::Impl::loop() {
  std::unique_lock lock(mutex);
  for (;;) {
    wake.wait(lock, [&] { return stopping || has_commands() || !idle; });
    if (idle) last_step = Clock::now();
    idle = false;
    apply(lock);
    if (stopping) break;
    lock.unlock();
    bool worked = true;
    try {
      worked = engine->step();
    } catch (const std::exception&) {  // out of memory between the steps' own guards: give back what there is
      engine->cancel_all();
    }
    const Metrics now = engine->metrics();
    lock.lock();
    metrics = now;
    last_step = Clock::now();
    idle = !worked && !has_commands();
    if (idle) idle_changed.notify_all();
  }
  lock.unlock();
  engine->cancel_all();
  lock.lock();
  metrics = engine->metrics();
  idle = true;
  idle_changed.notify_all();
}

// submit() has checked the request; what is left to go wrong is memory.
void AsyncEngine::Impl::start(const Submission& s) {
  Event event;
  event.request = s.id;
  event.reason = FinishReason::error;
  try {
    engine->add(s.request, s.sink, s.id);
    return;
  } catch (const std::exception& error) {
    event.error = error.what();
  }
  try {
    for (event.choice = 0; event.choice < s.request.params.n; ++event.choice) s.sink(event);
  } catch (...) {  // a reader that failed, of a request that has ended
  }
}

// Commands in the order: new requests, jobs, cancellations, so that a cancellation finds its request.
void AsyncEngine::Impl::apply(std::unique_lock<std::mutex>& lock) {
  const auto new_requests = std::exchange(submissions, {});
  const auto cancelled = std::exchange(cancellations, {});
  auto work = std::exchange(jobs, {});
  lock.unlock();
  for (const Submission& s : new_requests) start(s);
  for (auto& job : work) job(*engine);
  for (const RequestId id : cancelled) engine->cancel(id);
  const Metrics now = engine->metrics();
  lock.lock();
  for (const Submission& s : new_requests) waiting -= s.request.params.n;
  metrics = now;
}

RequestId AsyncEngine::submit(Request request, Sink sink) {
  validate(request, impl_->limits);
  const std::lock_guard lock(impl_->mutex);
  if (impl_->draining || impl_->stopping) fail(ErrorCode::busy, "the engine is stopping; no new requests are taken");
  const int64_t queued = impl_->metrics.queued + impl_->waiting;
  if (queued >= impl_->config.max_queued) {
    ++impl_->refused;
    fail(ErrorCode::busy, "the queue is full: {} answers wait; try again later", queued);
  }
  const RequestId id = ++impl_->last_id;
  impl_->waiting += request.params.n;
  impl_->submissions.push_back({std::move(request), std::move(sink), id});
  impl_->wake.notify_one();
  return id;
}

std::unique_ptr<Stream> AsyncEngine::submit(Request request) {
  auto state = std::make_shared<Stream::State>();
  state->open = request.params.n;
  state->id = submit(std::move(request), [state](const Event& event) { state->push(event); });
  return std::unique_ptr<Stream>(new Stream(*this, std::move(state)));
}

void AsyncEngine::cancel(RequestId id) {
  const std::lock_guard lock(impl_->mutex);
  if (impl_->stopping) return;  // everything is cancelled
  impl_->cancellations.push_back(id);
  impl_->wake.notify_one();
}

void AsyncEngine::run(const std::function<void(Engine&)>& job) {
  std::packaged_task<void(Engine&)> task(job);
  std::future<void> done = task.get_future();
  {
    const std::lock_guard lock(impl_->mutex);
    if (impl_->stopping) fail(ErrorCode::busy, "the engine is stopping");
    impl_->jobs.push_back(std::move(task));
    impl_->wake.notify_one();
  }
  done.get();
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
  if (impl_->idle) return 0;
  return std::chrono::duration<double>(Clock::now() - impl_->last_step).count();
}

bool AsyncEngine::drain(std::chrono::milliseconds timeout) {
  std::unique_lock lock(impl_->mutex);
  impl_->draining = true;
  return impl_->idle_changed.wait_for(lock, timeout, [&] { return impl_->idle && !impl_->has_commands(); });
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
