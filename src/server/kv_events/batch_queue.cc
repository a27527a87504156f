// SPDX-License-Identifier: Apache-2.0
#include "server/kv_events/batch_queue.h"

#include <utility>

namespace sluice::server {

namespace {
constexpr size_t kMostTokens = size_t{16} << 20;  // 64 MB of token ids
}

bool BatchQueue::push(double time, std::vector<engine::CacheEvent> events) {
  using engine::CacheEvent;
  size_t tokens = 0;
  for (const CacheEvent& e : events) tokens += e.tokens.size();
  const std::lock_guard lock(mutex_);
  const bool empty = batches_.empty();
  if (batches_.size() >= most_ || (!empty && tokens_ + tokens > kMostTokens)) {
    dropped_ += batches_.size();
    batches_.clear();
    tokens_ = 0;
    if (events.empty() || events.front().kind != CacheEvent::Kind::cleared)
      events.insert(events.begin(), {.kind = CacheEvent::Kind::cleared});
  }
  batches_.push_back({next_++, time, std::move(events)});
  tokens_ += tokens;
  return empty;
}

std::deque<EventBatch> BatchQueue::take() {
  const std::lock_guard lock(mutex_);
  tokens_ = 0;
  return std::exchange(batches_, {});
}

uint64_t BatchQueue::dropped() const {
  const std::lock_guard lock(mutex_);
  return dropped_;
}

}  // namespace sluice::server
