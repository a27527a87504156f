// SPDX-License-Identifier: Apache-2.0
#include "server/generation.h"

#include <fmt/format.h>

#include <mutex>
#include <utility>

#include "server/api_error.h"

namespace sluice::server {

std::string sse(std::string_view json) { return fmt::format("data: {}\n\n", json); }

AnswerRequest::AnswerRequest(Service& service, const http::Exchange& exchange)
    : model((service.require_ready(), service.model())),
      limits(service.engine()->limits()),
      body(parse_body(exchange.request().body)),
      fields(body) {}

std::string AnswerWriter::error_event(const ApiError& error) { return sse(error_body(error)); }

namespace {
void post_delivery(Mailbox& mailbox, const std::shared_ptr<http::Exchange>& exchange) {
  exchange->post([&mailbox, exchange] { mailbox.deliver_all([&] { post_delivery(mailbox, exchange); }); });
}

class Generation final : public Recipient, public std::enable_shared_from_this<Generation> {
 public:
  Generation(Service& service, std::shared_ptr<http::Exchange> exchange, Job job)
      : service_(service), engine_(service.engine()), exchange_(std::move(exchange)), job_(std::move(job)) {
    for (const engine::Request& r : job_.requests) open_ += r.params.n;
  }
  ~Generation() override { forget_names(); }

  void start();
  void deliver() override;

 private:
  struct Arrived {
    size_t prompt = 0;
    engine::Event event;
    std::string weight_version;
  };
  // Events, in memory that is used again: the engine's thread allocates nothing for a token.
  struct Events {
    std::vector<Arrived> slots;
    size_t count = 0;
  };

  void arrived(size_t prompt, const engine::Event& event);
  void take(const Arrived& a);
  void finish();
  void fail(const ApiError& error);
  void cancel();
  void forget_names();
  void log_line() const;

  Service& service_;
  std::shared_ptr<EngineClient> engine_;
  std::shared_ptr<http::Exchange> exchange_;
  Job job_;
  int64_t open_ = 0;                             // choices without their last event
  std::vector<Service::Registered> registered_;  // of job_.names
  bool started_ = false, over_ = false;          // of the answer
  std::string out_;
  engine::Usage total_;
  std::string reasons_;
  Events taken_;  // empty but in deliver()

  std::mutex mutex_;  // of what the engine's thread touches too
  Events events_;
  std::vector<engine::RequestId> ids_;
  bool waking_ = false, cancelled_ = false;
};

void Generation::start() {
  registered_.reserve(job_.names.size());
  for (const RequestName& name : job_.names) registered_.push_back(service_.register_request(name));
  std::vector<engine::Request> requests = std::exchange(job_.requests, {});
  std::vector<engine::Sink> sinks;
  for (size_t i = 0; i < requests.size(); ++i)
    sinks.emplace_back([self = shared_from_this(), i](const engine::Event& event) { self->arrived(i, event); });
  std::vector<engine::RequestId> ids = engine_->submit(std::move(requests), std::move(sinks));
  const auto add = [&](Service::Registered to, engine::RequestId id) {
    if (!service_.add_to_request(to, id)) engine_->cancel(id);
  };
  for (size_t k = 0; k < registered_.size(); ++k)
    if (const auto prompt = job_.names[k].prompt)
      add(registered_[k], ids[*prompt]);
    else
      for (const engine::RequestId id : ids) add(registered_[k], id);
  {
    const std::lock_guard lock(mutex_);
    ids_ = std::move(ids);
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
    // Read here, between two steps: later the weights may be others.
    if (events_.count == events_.slots.size()) events_.slots.emplace_back();
    Arrived& a = events_.slots[events_.count];
    a.prompt = prompt;
    a.event = event;
    a.weight_version = service_.weight_version();
    ++events_.count;
    if (waking_) return;
    waking_ = true;
  }
  Mailbox& mailbox = service_.mailbox();
  mailbox.put(shared_from_this(), [&] { post_delivery(mailbox, exchange_); });
}

void Generation::deliver() {
  if (!started_) return;
  {
    const std::lock_guard lock(mutex_);
    waking_ = false;
    std::swap(taken_, events_);
  }
  const size_t count = std::exchange(taken_.count, 0);
  try {
    for (size_t i = 0; i < count && !over_; ++i) take(taken_.slots[i]);
  } catch (const std::exception& error) {
    fail({500, "server_error", error.what(), "", "internal_error"});
  }
  // A stream's opening waits for the first event, and with it the head.
  if (count > 0 && !out_.empty()) exchange_->write(std::exchange(out_, {}));
  if (open_ == 0 && !over_) finish();
}

void Generation::take(const Arrived& a) {
  const engine::Event& e = a.event;
  if (e.reason == engine::FinishReason::error) return fail({500, "server_error", e.error, "", "internal_error"});
  if (e.reason == engine::FinishReason::timed_out) return fail({503, "overloaded_error", e.error, "", "timed_out"});
  job_.writer->set_weight_version(a.weight_version);
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
void Generation::forget_names() {
  for (const Service::Registered& name : registered_) service_.forget_request(name);
  registered_.clear();
}

void Generation::finish() {
  over_ = true;
  forget_names();
  if (job_.stream) {
    exchange_->write(job_.writer->end_stream());
    exchange_->end();
  } else {
    exchange_->reply({.body = job_.writer->whole()});
  }
  log_line();
}

// One choice's failure is the request's: the rest is cancelled.
void Generation::fail(const ApiError& error) {
  over_ = true;
  forget_names();
  if (job_.stream)  // a client that has nothing of it yet gets the status, by which it knows to try again
    exchange_->fail(job_.writer->error_reply(error), std::exchange(out_, {}) + job_.writer->error_event(error));
  else
    exchange_->reply(job_.writer->error_reply(error));
  reasons_ = fmt::format("error: {}", error.what());
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
      "{}: {}: {} prompt ({} cached) + {} new tokens, first after {:.3f} s, {:.1f} tok/s, {:.3f} s, {}",
      exchange_->request_id(), job_.id, total_.prompt_tokens, total_.cached_tokens, total_.completion_tokens,
      total_.first_token_seconds, decode > 0 ? static_cast<double>(total_.completion_tokens) / decode : 0.0,
      total_.total_seconds, reasons_));
}
}  // namespace

void start_generation(Service& service, const std::shared_ptr<http::Exchange>& exchange, Job job) {
  service.require_ready();
  std::make_shared<Generation>(service, exchange, std::move(job))->start();
}

}  // namespace sluice::server
