// SPDX-License-Identifier: Apache-2.0
// What the endpoints need of an engine. EngineBackend is the one behind `sluice serve`; tests have another.
#pragma once

#include <chrono>
#include <string>

#include "engine/engine.h"
#include "engine/request.h"

namespace sluice::server {

// Any thread may call anything.
class Backend {
 public:
  virtual ~Backend() = default;

  // As engine::AsyncEngine.
  virtual engine::RequestId submit(engine::Request request, engine::Sink sink) = 0;
  virtual void cancel(engine::RequestId id) = 0;
  virtual void cancel_all() = 0;
  virtual void flush_cache() = 0;
  virtual engine::Metrics metrics() const = 0;
  virtual engine::Limits limits() const = 0;
  virtual const engine::EngineConfig& config() const = 0;
  virtual double stalled_seconds() const = 0;

  // The weights of the checkpoint in `path` take the place of the running ones; what runs is cancelled. Throws as
  // loading does, and invalid_argument for another model; then the old weights stay.
  virtual void reload(const std::string& path) = 0;

  // Refuses new requests and waits for the running ones. False: some were left after `timeout`.
  virtual bool drain(std::chrono::milliseconds timeout) = 0;
  virtual void stop() = 0;
};

}  // namespace sluice::server
