// SPDX-License-Identifier: Apache-2.0
#include "engine/event_queue.h"

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

int64_t& EventQueue::number_of(size_t source, int choice) {
  const auto at = static_cast<size_t>(choice);
  if (numbers_.size() <= source) numbers_.resize(source + 1);
  if (numbers_[source].size() <= at) numbers_[source].resize(at + 1, -1);
  return numbers_[source][at];
}

void EventQueue::push(size_t source, const Event& event, int64_t mark) {
  {
    const std::lock_guard lock(mutex_);
    int64_t& number = number_of(source, event.choice);
    if (number >= taken_) {
      Entry& waiting = entries_[static_cast<size_t>(number - taken_)];
      merge(waiting.event, event);
      waiting.mark = mark;
    } else {
      entries_.push_back({source, event, mark});
      number = taken_ + static_cast<int64_t>(entries_.size()) - 1;
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
  ++taken_;
  if (entry.event.reason != FinishReason::none) --open_;
  return entry;
}

bool EventQueue::done() const {
  const std::lock_guard lock(mutex_);
  return open_ == 0;
}

}  // namespace sluice::engine
