// SPDX-License-Identifier: Apache-2.0
#include "engine/request_table.h"

#include <algorithm>
#include <utility>

namespace sluice::engine {

RequestId RequestTable::new_id(RequestId wanted) const {
  const RequestId id = wanted == 0 ? last_id_ + 1 : wanted;
  check(requests_.count(id) == 0, "request id {} is in use", id);
  return id;
}

void RequestTable::open(RequestId id, Sink sink, int choices) {
  last_id_ = std::max(last_id_, id);
  requests_[id] = {std::move(sink), choices};
}

void RequestTable::insert(Handle handle, std::unique_ptr<OutputSequence> output) {
  const auto at = static_cast<size_t>(handle);
  if (outputs_.size() <= at) outputs_.resize(at + 1);
  if (output->queue_timeout > 0 || output->timeout > 0) ++timed_;
  outputs_[at] = {std::move(output), nullptr};
  ++metrics_.queued;
}

// Adds the latencies of the new tokens to the histograms.
void RequestTable::record_latencies(OutputSequence& c, Clock::time_point now) {
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

// Adds what is known of a complete answer to the histograms.
void RequestTable::record_end(Output& at) {
  const OutputSequence& c = *at.output;
  const Usage& u = at.output->event().usage;
  const int64_t tokens = c.answer_length();
  // An answer without tokens (max_tokens = 0) ends with its prompt.
  const double first = tokens > 0 ? u.first_token_seconds : u.total_seconds;
  const double decode = tokens > 0 ? seconds(c.last_token - c.added) - first : 0;
  metrics_.request_seconds.observe(u.total_seconds);
  metrics_.prefill_seconds.observe(first - u.queue_seconds);
  metrics_.decode_seconds.observe(decode);
  metrics_.token_seconds.observe(tokens > 1 ? decode / static_cast<double>(tokens - 1) : 0);
  metrics_.prompt_lengths.observe(static_cast<double>(u.prompt_tokens));
  metrics_.answer_lengths.observe(static_cast<double>(tokens));
  at.request->longest = std::max(at.request->longest, tokens);
}

// What is counted of every answer, also of one that was cut off.
void RequestTable::count_end(Output& at) {
  const OutputSequence& c = *at.output;
  if (!c.started) --metrics_.queued;
  if (c.queue_timeout > 0 || c.timeout > 0) --timed_;
  switch (at.output->event().reason) {
    case FinishReason::stop:
      ++metrics_.finished_stop;
      break;
    case FinishReason::length:
      ++metrics_.finished_length;
      break;
    case FinishReason::cancelled:
    case FinishReason::timed_out:
      ++metrics_.finished_cancelled;
      break;
    case FinishReason::error:
    case FinishReason::none:
      ++metrics_.finished_error;
      break;
  }
  if (--at.request->open == 0 && at.request->longest >= 0)
    metrics_.longest_answers.observe(static_cast<double>(at.request->longest));
}

void RequestTable::restart_scores() {
  for (const Output& at : outputs_)
    if (at.output) at.output->restart_scores();
}

void RequestTable::publish(Handle handle, Clock::time_point now) {
  Output& at = outputs_[static_cast<size_t>(handle)];
  OutputSequence& c = *at.output;
  Event& event = c.event();
  const auto count = static_cast<int64_t>(event.tokens.size());
  if (count == 0 && event.prompt_logprobs.empty() && !c.finished()) return;
  if (count > 0) record_latencies(c, now);
  const bool first = at.request == nullptr, ended = c.finished();
  if (first) at.request = &requests_.at(event.request);
  if (ended) {
    event.usage.preemptions = scheduler_.preemptions(handle);
    event.usage.total_seconds = seconds(now - c.added);
    // How long an answer and its phases took says nothing of one that was cut off.
    if (event.reason == FinishReason::stop || event.reason == FinishReason::length) record_end(at);
    if (c.routed_experts) c.give_routed_experts();
    // Before the sink is called: its blocks are free, and it is not counted any more, when the user hears of the end.
    scheduler_.remove(handle);
    count_end(at);
  }
  if (first || ended) on_change_();
  try {
    at.request->sink(event);
  } catch (...) {  // the sink failed: its sequence ends, the engine goes on
    if (!ended) {
      c.finish(FinishReason::cancelled);
      scheduler_.remove(handle);
      count_end(at);
    }
  }
  c.clear_event();
  if (c.finished()) erase(handle);
}

void RequestTable::erase(Handle handle) {
  const Output gone = std::exchange(outputs_[static_cast<size_t>(handle)], {});
  if (gone.request->open == 0) requests_.erase(gone.output->event().request);
}

bool RequestTable::cancel(RequestId id) {
  if (requests_.count(id) == 0) return false;
  const auto now = Clock::now();
  for (size_t h = 0; h < outputs_.size(); ++h) {
    OutputSequence* c = outputs_[h].output.get();
    if (c == nullptr || c->event().request != id) continue;
    c->finish(FinishReason::cancelled);
    publish(static_cast<Handle>(h), now);
  }
  return true;
}

void RequestTable::expire(Clock::time_point now) {
  for (size_t h = 0; timed_ > 0 && h < outputs_.size(); ++h) {
    OutputSequence* c = outputs_[h].output.get();
    if (c == nullptr) continue;
    const double age = seconds(now - c->added);
    const auto over = [&](double limit) { return limit > 0 && age >= limit; };
    if (!c->started && (over(c->queue_timeout) || over(c->timeout)))
      c->finish(FinishReason::timed_out, fmt::format("the request has waited for {:.3g} s; try again later", age));
    else if (over(c->timeout))
      c->finish(FinishReason::cancelled);
    else
      continue;
    publish(static_cast<Handle>(h), now);
  }
}

void RequestTable::cancel_all() {
  while (!requests_.empty()) cancel(requests_.begin()->first);
}

}  // namespace sluice::engine
