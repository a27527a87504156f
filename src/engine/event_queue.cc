// SPDX-License-Identifier: Apache-2.0
#include "engine/event_queue.h"

#include <algorithm>

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
  into.routed_experts = more.routed_experts;
  into.usage = more.usage;
}
}  // namespace

void EventQueue::push(size_t source, const Event& event, int64_t mark) {
  {
    const std::lock_guard lock(mutex_);
    const auto same = std::find_if(entries_.begin(), entries_.end(), [&](const Entry& e) {
      return e.source == source && e.event.choice == event.choice;
    });
    if (same != entries_.end()) {
      merge(same->event, event);
      same->mark = mark;
    } else {
      entries_.push_back({source, event, mark});
    }
  }
  changed_.notify_one();
}

std::optional<EventQueue::Entry> EventQueue::next(std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  const auto ready = [&] { return !entries_.empty() || open_ == 0; };
  if (!changed_.wait_for(lock, timeout, ready) || entries_.empty()) return std::nullopt;
  Entry entry = std::move(entries_.front());
  entries_.pop_front();
  if (entry.event.reason != FinishReason::none) --open_;
  return entry;
}

bool EventQueue::done() const {
  const std::lock_guard lock(mutex_);
  return open_ == 0;
}

}  // namespace sluice::engine
