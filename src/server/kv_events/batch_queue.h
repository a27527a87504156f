// SPDX-License-Identifier: Apache-2.0
// Batches of cache events between the engine, which never waits, and the thread that publishes them.
#pragma once

#include <cstdint>
#include <deque>
#include <mutex>
#include <vector>

#include "engine/cache_events.h"

namespace sluice::server {

struct EventBatch {
  uint64_t sequence = 0;
  double time = 0;  // seconds since 1970
  std::vector<engine::CacheEvent> events;
};

class BatchQueue {
 public:
  explicit BatchQueue(size_t most) : most_(most) {}

  // Returns true when the queue was empty: the reader may be asleep. When it is full, everything that waits is dropped
  // and the new batch begins with `cleared`: who mirrors the cache then knows less than there is, never what is not
  // there. Sequence numbers go on, so that the gap shows.
  bool push(double time, std::vector<engine::CacheEvent> events);
  std::deque<EventBatch> take();
  uint64_t dropped() const;  // batches, so far

 private:
  mutable std::mutex mutex_;
  std::deque<EventBatch> batches_;
  size_t most_, tokens_ = 0;
  uint64_t next_ = 0, dropped_ = 0;
};

}  // namespace sluice::server
