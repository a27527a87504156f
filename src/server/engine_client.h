// SPDX-License-Identifier: Apache-2.0
// What the endpoints need of an engine. InProcessEngine is the one behind `sluice serve`; tests have another.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/live_engine.h"
#include "engine/request.h"
#include "io/checkpoint.h"

namespace sluice::server {

// Any thread may call anything.
class EngineClient {
 public:
  virtual ~EngineClient() = default;

  // As engine::AsyncEngine.
  virtual engine::RequestId submit(engine::Request request, engine::Sink sink) = 0;
  virtual std::vector<engine::RequestId> submit(std::vector<engine::Request> requests,
                                                std::vector<engine::Sink> sinks) = 0;
  virtual void cancel(engine::RequestId id) = 0;
  virtual void cancel_all() = 0;
  virtual void flush_cache() = 0;
  virtual engine::Metrics metrics() const = 0;
  virtual engine::Limits limits() const = 0;
  virtual const engine::EngineConfig& config() const = 0;
  virtual double stalled_seconds() const = 0;
  virtual std::string fault() const = 0;

  // As engine::LiveEngine, with `path` for the options of a checkpoint.
  virtual void pause(engine::PauseMode mode) = 0;
  virtual void resume() = 0;
  virtual bool paused() const = 0;
  virtual void reload(const std::string& path, const engine::Replacement& how) = 0;
  virtual void update(const engine::NamedTensors& tensors, const engine::Replacement& how) = 0;
  virtual void begin_update() = 0;
  virtual void end_update(const engine::Replacement& how) = 0;
  virtual void check_update(const engine::NamedTensors& tensors) const = 0;
  virtual std::optional<engine::SentTensors> sent() const = 0;
  virtual io::Checkpoint weights() const = 0;
  virtual void release_memory(engine::MemoryTags tags) = 0;
  virtual void resume_memory(engine::MemoryTags tags) = 0;

  // As engine::Engine's. The functions of steps are called on the engine's thread.
  virtual void record_experts(bool on) = 0;
  virtual std::pair<bool, engine::ExpertCounts> expert_counts() = 0;  // still recording; the counts
  virtual void trace_steps(int64_t steps, std::function<void(const engine::StepTrace&)> trace) = 0;

  // Refuses new requests and waits for the running ones. False: some were left after `timeout`.
  virtual bool drain(std::chrono::milliseconds timeout) = 0;
  virtual void stop() = 0;
};

}  // namespace sluice::server
