// SPDX-License-Identifier: Apache-2.0
#include "engine/answers.h"

#include <algorithm>

namespace sluice::engine {

RequestId Answers::new_id(RequestId wanted) const {
  const RequestId id = wanted == 0 ? last_id_ + 1 : wanted;
  check(jobs_.count(id) == 0, "request id {} is in use", id);
  return id;
}

void Answers::open(RequestId id, Sink sink, int choices) {
  last_id_ = std::max(last_id_, id);
  jobs_[id] = {std::move(sink), choices};
}

void Answers::insert(Handle handle, std::unique_ptr<Choice> choice) {
  const auto at = static_cast<size_t>(handle);
  if (choices_.size() <= at) choices_.resize(at + 1);
  choices_[at] = std::move(choice);
  ++metrics_.queued;
}

// When the new tokens came, for the histograms.
void Answers::measure(Choice& c, Clock::time_point now) {
  Event& event = c.event();
  const auto count = static_cast<int64_t>(event.tokens.size());
  const bool first = c.last_token == Clock::time_point{};
  const double gap = seconds(now - (first ? c.added : c.last_token));
  if (first) event.usage.first_token_seconds = gap;
  (first ? metrics_.first_token_seconds : metrics_.inter_token_seconds)
      .observe(first ? gap : gap / static_cast<double>(count));
  for (int64_t i = 1; i < count; ++i)
    metrics_.inter_token_seconds.observe(first ? 0 : gap / static_cast<double>(count));
  c.last_token = now;
}

void Answers::publish(Handle handle, Clock::time_point now) {
  Choice& c = *choices_[static_cast<size_t>(handle)];
  Event& event = c.event();
  const auto count = static_cast<int64_t>(event.tokens.size());
  if (count == 0 && event.prompt_logprobs.empty() && !c.finished()) return;
  if (count > 0) measure(c, now);
  if (c.finished()) {
    event.usage.preemptions = scheduler_.preemptions(handle);
    event.usage.total_seconds = seconds(now - c.added);
    metrics_.request_seconds.observe(event.usage.total_seconds);
    scheduler_.remove(handle);  // before the sink: what it held is free when the user hears of the end
  }
  try {
    jobs_.at(event.request).sink(event);
  } catch (...) {  // a reader that failed: its request ends, the engine goes on
    if (!c.finished()) {
      c.finish(FinishReason::cancelled);
      scheduler_.remove(handle);
    }
  }
  c.clear_event();
  if (c.finished()) end(handle);
}

void Answers::end(Handle handle) {
  std::unique_ptr<Choice> choice = std::move(choices_[static_cast<size_t>(handle)]);
  if (!choice->started) --metrics_.queued;
  switch (choice->event().reason) {
    case FinishReason::stop:
      ++metrics_.finished_stop;
      break;
    case FinishReason::length:
      ++metrics_.finished_length;
      break;
    case FinishReason::cancelled:
      ++metrics_.finished_cancelled;
      break;
    case FinishReason::error:
    case FinishReason::none:
      ++metrics_.finished_error;
      break;
  }
  const auto job = jobs_.find(choice->event().request);
  if (--job->second.open == 0) jobs_.erase(job);
}

bool Answers::cancel(RequestId id) {
  if (jobs_.count(id) == 0) return false;
  const auto now = Clock::now();
  for (size_t h = 0; h < choices_.size(); ++h) {
    Choice* c = choices_[h].get();
    if (c == nullptr || c->event().request != id) continue;
    c->finish(FinishReason::cancelled);
    publish(static_cast<Handle>(h), now);
  }
  return true;
}

void Answers::cancel_all() {
  while (!jobs_.empty()) cancel(jobs_.begin()->first);
}

}  // namespace sluice::engine
