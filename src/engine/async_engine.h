// SPDX-License-Identifier: Apache-2.0
// The engine on a thread of its own, for callers on many threads, such as a server.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "engine/engine.h"

namespace sluice::engine {

class AsyncEngine;

// The events of one request, read by one thread. Destroying it cancels the request if it still runs.
class EventStream {
 public:
  ~EventStream();
  EventStream(const EventStream&) = delete;
  EventStream& operator=(const EventStream&) = delete;

  RequestId id() const;
  // The next event, of any choice; waits at most `timeout`. Nothing: no event yet, or all choices have finished
  // (done()). A slow reader finds the events of one choice merged into one, so a stream's memory is bounded by its
  // answer.
  std::optional<Event> next(std::chrono::milliseconds timeout);
  bool done() const;  // every choice's last event was taken
  void cancel();      // returns at once; the last events say cancelled

 private:
  friend class AsyncEngine;
  struct State;
  EventStream(AsyncEngine& engine, std::shared_ptr<State> state);
  AsyncEngine& engine_;
  std::shared_ptr<State> state_;
};

class AsyncEngine {
 public:
  explicit AsyncEngine(std::unique_ptr<Engine> engine);
  ~AsyncEngine();  // stop()

  // Checks and queues a request; any thread. Throws invalid_argument (validate()), busy when max_queued choices wait
  // already or when the engine is stopping, cuda when the device has failed (fault()). Streams must not outlive the
  // engine.
  std::unique_ptr<EventStream> submit(Request request);
  // The same for event loops: `sink` is called on the engine's thread (see Sink), where it may wake the loop.
  RequestId submit(Request request, Sink sink);
  // All of them or none, `sinks` one for each. A group is taken while fewer than max_queued choices wait, however many
  // it brings: what a caller's own limit lets through must not wait for room that can never come.
  std::vector<RequestId> submit(std::vector<Request> requests, std::vector<Sink> sinks);
  // Takes effect before the next step; any thread. Unknown and finished ids are ignored.
  void cancel(RequestId id);

  // Runs `job` on the engine's thread between two steps and waits for it: flush_cache, replace_model, cancel_all.
  // What it throws is thrown here; busy when the engine stops before the job has begun.
  void run(const std::function<void(Engine&)>& job);

  // While any reason holds the engine no step is run: requests are taken and wait, jobs, cancellations and the time
  // limits of requests take effect. On return of hold() no step is running any more.
  enum class Hold : uint8_t { paused = 1, released = 2 };
  void hold(Hold reason);
  void release(Hold reason);
  bool held(Hold reason) const;

  Limits limits() const;
  const EngineConfig& config() const;
  const model::ModelInfo& model_info() const;
  // Of the last finished step, but without answers whose end a sink has heard of since; never waits for a step.
  Metrics metrics() const;
  // Seconds since the engine's thread last finished a step while having work; 0 when idle or held: a health check.
  double stalled_seconds() const;

  // Engine::fault(). What runs and waits then ends with an error, and new requests are refused.
  std::string fault() const;
  // Calls `then` on the engine's thread when there is a fault, once; at once when there is one already.
  void on_fault(std::function<void()> then);

  // Refuses new requests and waits until all are finished, at most `timeout`. False: some are left, as at once when
  // the engine is held.
  bool drain(std::chrono::milliseconds timeout);
  // Refuses new requests, cancels what is left, queued requests too, answers jobs that have not begun with busy, and
  // ends the thread after the step or job that it is in.
  void stop();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice::engine
