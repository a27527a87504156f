// SPDX-License-Identifier: Apache-2.0
#include "server/generation.h"

#include <fmt/format.h>

#include <mutex>
#include <utility>

#include "server/api_error.h"

namespace sluice::server {

std::string sse(std::string_view json) { return fmt::format("data: {}\n\n", json); }

namespace {
class Generation final : public Recipient, public std::enable_shared_from_this<Generation> {
 public:
  Generation(Service& service, std::shared_ptr<http::Exchange> exchange, Job job)
      : service_(service), engine_(service.backend()), exchange_(std::move(exchange)), job_(std::move(job)) {
    for (const engine::Request& r : job_.requests) open_ += r.params.n;
  }
  ~Generation() override { forget_name(); }

  void start();
  void deliver() override;

 private:
  struct Arrived {
    size_t prompt;
    engine::Event event;
  };

  void arrived(size_t prompt, const engine::Event& event);
  void take(const Arrived& a);
  void finish();
  void fail(const std::string& sentence);
  void cancel();
  void forget_name();
  void log_line() const;

  Service& service_;
  std::shared_ptr<Backend> engine_;
  std::shared_ptr<http::Exchange> exchange_;
  Job job_;
  int64_t open_ = 0;  // choices without their last event
  bool registered_ = false;
  bool started_ = false, over_ = false;  // of the answer
  std::string out_;
  engine::Usage total_;
  std::string reasons_;

  std::mutex mutex_;  // of what the engine's thread touches too
  std::vector<Arrived> events_;
  std::vector<engine::RequestId> ids_;
  bool waking_ = false, cancelled_ = false;
};

void Generation::start() {
  service_.register_request(job_.rid);
  registered_ = true;
  const std::vector<engine::Request> requests = std::exchange(job_.requests, {});
  try {
    for (size_t i = 0; i < requests.size(); ++i) {
      const engine::RequestId id = engine_->submit(
          requests[i], [self = shared_from_this(), i](const engine::Event& event) { self->arrived(i, event); });
      service_.add_to_request(job_.rid, id);
      const std::lock_guard lock(mutex_);
      ids_.push_back(id);
    }
  } catch (...) {
    {
      const std::lock_guard lock(mutex_);
      cancelled_ = true;  // whoever called start() answers
    }
    for (const engine::RequestId id : ids_) engine_->cancel(id);
    throw;
  }
  // The engine's sink keeps this alive until the last event.
  exchange_->on_gone([weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->cancel();
  });
  if (job_.stream)
    exchange_->begin_stream({.content_type = "text/event-stream; charset=utf-8",
                             .headers = {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}}});
  // Events that came meanwhile were kept: an answer has begun only when all of its prompts are in the engine.
  exchange_->post([self = shared_from_this()] {
    self->started_ = true;
    if (self->job_.stream) self->out_ = self->job_.writer->begin_stream();
    self->deliver();
  });
}

// On the engine's thread: keeps the event and wakes the server's, unless it is coming anyway.
void Generation::arrived(size_t prompt, const engine::Event& event) {
  {
    const std::lock_guard lock(mutex_);
    if (cancelled_) return;
    events_.push_back({prompt, event});
    if (waking_) return;
    waking_ = true;
  }
  Mailbox& mailbox = service_.mailbox();
  mailbox.put(shared_from_this(), [&] { exchange_->post([&mailbox] { mailbox.deliver_all(); }); });
}

void Generation::deliver() {
  if (!started_) return;
  std::vector<Arrived> events;
  {
    const std::lock_guard lock(mutex_);
    waking_ = false;
    events.swap(events_);
  }
  try {
    for (const Arrived& a : events)
      if (!over_) take(a);
  } catch (const std::exception& error) {
    fail(error.what());
  }
  if (!out_.empty()) exchange_->write(std::exchange(out_, {}));
  if (open_ == 0 && !over_) finish();
}

void Generation::take(const Arrived& a) {
  const engine::Event& e = a.event;
  if (e.reason == engine::FinishReason::error) return fail(e.error);
  if (job_.stream)
    out_ += job_.writer->stream_event(a.prompt, e);
  else
    job_.writer->add(a.prompt, e);
  if (e.reason == engine::FinishReason::none) return;
  --open_;
  if (e.choice == 0) total_.prompt_tokens += e.usage.prompt_tokens, total_.cached_tokens += e.usage.cached_tokens;
  total_.completion_tokens += e.usage.completion_tokens;
  total_.first_token_seconds = std::max(total_.first_token_seconds, e.usage.first_token_seconds);
  total_.total_seconds = std::max(total_.total_seconds, e.usage.total_seconds);
  reasons_ += fmt::format("{}{}", reasons_.empty() ? "" : ",", engine::to_string(e.reason));
}

// Before the client knows that the answer is complete: then it may use the name again.
void Generation::forget_name() {
  if (std::exchange(registered_, false)) service_.forget_request(job_.rid);
}

void Generation::finish() {
  over_ = true;
  forget_name();
  if (job_.stream) {
    exchange_->write(job_.writer->end_stream());
    exchange_->end();
  } else {
    exchange_->reply({.body = job_.writer->whole()});
  }
  log_line();
}

// One choice's failure is the request's: the rest is cancelled.
void Generation::fail(const std::string& sentence) {
  over_ = true;
  forget_name();
  const ApiError error(500, "server_error", sentence, "", "internal_error");
  if (job_.stream) {
    exchange_->write(std::exchange(out_, {}) + sse(error_body(error)));
    exchange_->end();
  } else {
    exchange_->reply(error_response(error));
  }
  reasons_ = "error: " + sentence;
  log_line();
  cancel();
}

void Generation::cancel() {
  std::vector<engine::RequestId> ids;
  {
    const std::lock_guard lock(mutex_);
    cancelled_ = true;
    ids = ids_;
  }
  for (const engine::RequestId id : ids) engine_->cancel(id);
  if (!over_) {
    over_ = true;
    reasons_ = "the client has gone";
    log_line();
  }
}

// No word of prompt or answer: those are the user's.
void Generation::log_line() const {
  const double decode = total_.total_seconds - total_.first_token_seconds;
  service_.config().log(fmt::format(
      "{}: {} prompt ({} cached) + {} new tokens, first after {:.3f} s, {:.1f} tok/s, {:.3f} s, {}", job_.id,
      total_.prompt_tokens, total_.cached_tokens, total_.completion_tokens, total_.first_token_seconds,
      decode > 0 ? static_cast<double>(total_.completion_tokens) / decode : 0.0, total_.total_seconds, reasons_));
}
}  // namespace

void start_generation(Service& service, const std::shared_ptr<http::Exchange>& exchange, Job job) {
  service.require_ready();
  std::make_shared<Generation>(service, exchange, std::move(job))->start();
}

}  // namespace sluice::server
