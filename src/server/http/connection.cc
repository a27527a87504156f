// SPDX-License-Identifier: Apache-2.0
// A connection's life, its peer and its timers; connection_read.cc and connection_write.cc have the rest.
#include "server/http/connection.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <utility>

namespace sluice::server::http {

using boost::asio::ip::tcp;

namespace {
constexpr std::chrono::milliseconds kFirstLook{50};   // most requests are answered before anyone needs to watch
constexpr std::chrono::milliseconds kLookAgain{200};  // after unread input a closed peer shows only to poll()
constexpr std::string_view kComment = ": keep-alive\n\n";
}  // namespace

Connection::Connection(std::shared_ptr<Hub> hub, tcp::socket socket, bool kept)
    : hub_(std::move(hub)),
      socket_(std::move(socket)),
      deadline_(hub_->io),
      watch_timer_(hub_->io),
      comment_timer_(hub_->io),
      buffer_(std::max(kReadBuffer, hub_->options.header_bytes)),
      kept_(kept) {
  Error ignored;
  socket_.non_blocking(true, ignored);
  hub_->connections.insert(this);
  ++hub_->open;
}

// On the server's thread; of a closed connection, after the server's end, on any.
Connection::~Connection() {
  if (phase_ != Phase::closed) leave_hub();
  count_body(0);
}

void Connection::leave_hub() {
  hub_->connections.erase(this);
  --hub_->open;
  set_waiting(false);
}

void Connection::close() {
  if (phase_ == Phase::closed) return;
  phase_ = Phase::closed;
  leave_hub();
  Error ignored;
  socket_.close(ignored);
  deadline_.cancel();
  watch_timer_.cancel();
  comment_timer_.cancel();
  finish_exchange();
}

// ---- the peer while its request is answered

void Connection::watch() {
  watch_timer_.expires_after(kFirstLook);
  watch_timer_.async_wait([self = shared_from_this(), number = number_](Error error) {
    if (error || number != self->number_ || !self->in_exchange_) return;
    self->socket_.async_wait(tcp::socket::wait_read, [self, number](Error failed) {
      if (number != self->number_ || !self->in_exchange_) return;
      failed ? self->gone() : self->look_at_peer();
    });
  });
}

// A peer that has ended its side may still wait for the answer, or may have gone: both look the same until something
// is written to it, which a peer that has gone answers with a reset.
void Connection::look_at_peer() {
  pollfd state{socket_.native_handle(), POLLRDHUP, 0};
  const bool polled = ::poll(&state, 1, 0) > 0;
  if (polled && (state.revents & (POLLHUP | POLLERR)) != 0) return gone();
  const bool half = polled && (state.revents & POLLRDHUP) != 0;
  const bool wait_for_reset = half && !probed_ && probe_peer();
  watch_timer_.expires_after(wait_for_reset ? kFirstLook : kLookAgain);
  watch_timer_.async_wait([self = shared_from_this(), number = number_](Error error) {
    if (!error && number == self->number_ && self->in_exchange_) self->look_at_peer();
  });
}

// Writes what every client has to pass over: "100 Continue" before an answer (RFC 9110, 15.2; libraries skip this one
// of the 1xx for certain), a comment in a stream. False: nothing could be written.
bool Connection::probe_peer() {
  const bool streams = phase_ == Phase::streaming && !ended_;
  // HTTP/1.0 has no 1xx. A stream's comment then takes the head along: a peer that has ended its side and speaks
  // HTTP/1.0 has almost always gone, and its answer would run on.
  if (streams && (unsent_status_ == 0 || !chunked_)) {
    probed_ = true;
    write(number_, std::string(kComment));
    return true;
  }
  if ((phase_ != Phase::handling && !streams) || !chunked_) return false;
  probed_ = true;
  // It is the only thing in the socket's buffer: what was written before this request's answer has been flushed.
  return ::send(socket_.native_handle(), kContinue.data(), kContinue.size(), MSG_DONTWAIT | MSG_NOSIGNAL) > 0;
}

void Connection::gone() {
  if (phase_ == Phase::closed) return;
  if (const auto callback = std::exchange(gone_, nullptr)) callback();
  close();
}

void Connection::set_gone(uint64_t number, std::function<void()> callback) {
  if (number == number_ && in_exchange_)
    gone_ = std::move(callback);
  else
    callback();
}

// ---- timers

void Connection::arm(std::chrono::milliseconds timeout) {
  timed_out_ = false;
  deadline_.expires_after(timeout);
  deadline_.async_wait([self = shared_from_this()](Error error) {
    if (!error) self->on_deadline();
  });
}

void Connection::on_deadline() {
  // Re-armed or cancelled after this call was queued.
  if (deadline_.expiry() > std::chrono::steady_clock::now()) return;
  if (phase_ == Phase::reading) {
    timed_out_ = true;
    Error ignored;
    socket_.cancel(ignored);  // the read ends with an error and answers 408
  } else if (phase_ == Phase::streaming || phase_ == Phase::finishing) {
    if (writing_) gone();
  } else if (phase_ != Phase::handling) {
    close();
  }
}

void Connection::arm_comments() {
  comment_timer_.expires_after(hub_->options.comment_interval);
  comment_timer_.async_wait([self = shared_from_this(), number = number_](Error error) {
    if (error || number != self->number_ || self->phase_ != Phase::streaming || self->ended_) return;
    // Also between texts: a client loses nothing by a comment, and one rule is enough.
    self->write(number, std::string(kComment));
    self->arm_comments();
  });
}

}  // namespace sluice::server::http
