// SPDX-License-Identifier: Apache-2.0
// Connection: answers whole and streamed, and the end of a connection after its last one.
#include <fmt/format.h>

#include <boost/asio/buffer.hpp>
#include <utility>

#include "server/http/connection.h"
#include "server/http/framing.h"

namespace sluice::server::http {

namespace asio = boost::asio;
using asio::ip::tcp;

namespace {
constexpr std::chrono::milliseconds kLinger{2'000};
}  // namespace

std::string Connection::head_text(const Response& response, bool chunked) const {
  std::string text =
      fmt::format("HTTP/1.1 {} {}\r\nServer: sluice\r\n", response.status, reason_phrase(response.status));
  if (response.status != 204) text += fmt::format("Content-Type: {}\r\n", response.content_type);
  for (const Header& h : response.headers) text += fmt::format("{}: {}\r\n", h.name, h.value);
  text += keep_alive_ ? "Connection: keep-alive\r\n" : "Connection: close\r\n";
  return text + (chunked ? "Transfer-Encoding: chunked\r\n" : "");
}

void Connection::count_answer(int status) {
  if (status >= 0 && static_cast<size_t>(status) < kMostStatus) ++hub_->answers[static_cast<size_t>(status)];
}

void Connection::reply(uint64_t number, Response response) {
  if (number != number_ || phase_ != Phase::handling) return;
  if (response.close) keep_alive_ = false;
  count_answer(response.status);
  out_ = head_text(response, false);
  if (response.status != 204) out_ += fmt::format("Content-Length: {}\r\n", response.body.size());
  out_ += "\r\n";
  if (!head_only_) out_ += response.body;
  phase_ = Phase::finishing;
  ended_ = true;
  chunked_ = false;
  written_ = 0;
  flush();
}

void Connection::begin_stream(uint64_t number, const Response& head) {
  if (number != number_ || phase_ != Phase::handling) return;
  unsent_status_ = head.status;
  keep_alive_ = keep_alive_ && chunked_;  // without chunks, the end of the connection is the end of the answer
  out_ = head_text(head, chunked_) + "\r\n";
  written_ = 0;
  phase_ = Phase::streaming;
  arm_comments();  // what is written first sends the head
}

void Connection::write(uint64_t number, const std::string& bytes) {
  if (number != number_ || phase_ != Phase::streaming || ended_) return;
  pending_ += bytes;
  send_head();
  flush();
}

void Connection::end(uint64_t number) {
  if (number != number_ || phase_ != Phase::streaming || ended_) return;
  ended_ = true;
  comment_timer_.cancel();
  send_head();
  flush();
}

void Connection::fail(uint64_t number, Response response, const std::string& last) {
  if (number != number_ || phase_ != Phase::streaming || ended_) return;
  if (unsent_status_ == 0) {
    write(number, last);
    return end(number);
  }
  unsent_status_ = 0;
  comment_timer_.cancel();
  phase_ = Phase::handling;
  reply(number, std::move(response));
}

// With the next flush(); from now on the stream can only go on as one.
void Connection::send_head() {
  if (unsent_status_ != 0) count_answer(std::exchange(unsent_status_, 0));
}

void Connection::flush() {
  if (writing_ || phase_ == Phase::closed) return;
  if (written_ == out_.size()) {
    out_.clear();
    written_ = 0;
    if (!pending_.empty()) {
      out_ = chunked_ ? fmt::format("{:x}\r\n{}\r\n", pending_.size(), pending_) : std::move(pending_);
      pending_.clear();
    }
    if (ended_ && phase_ == Phase::streaming) {
      phase_ = Phase::finishing;
      if (chunked_) out_ += "0\r\n\r\n";
    }
    if (out_.empty()) {
      deadline_.cancel();
      if (phase_ != Phase::finishing) return;
      finish_exchange();
      return keep_alive_ ? await_request(hub_->options.idle_timeout) : linger();
    }
  }
  writing_ = true;
  arm(hub_->options.write_timeout);
  socket_.async_write_some(asio::buffer(out_.data() + written_, out_.size() - written_),
                           [self = shared_from_this()](Error error, size_t bytes) { self->on_written(error, bytes); });
}

void Connection::on_written(Error error, size_t bytes) {
  writing_ = false;
  if (phase_ == Phase::closed) return;
  if (error) return gone();
  written_ += bytes;
  flush();
}

void Connection::finish_exchange() {
  if (!in_exchange_) return;
  in_exchange_ = false;
  gone_ = nullptr;
  watch_timer_.cancel();
  comment_timer_.cancel();
  --hub_->exchanges;
}

void Connection::abandon(uint64_t number) {
  if (number != number_ || (phase_ != Phase::handling && phase_ != Phase::streaming)) return;
  Response response = own_answer(500, "the request ended without an answer");
  if (phase_ == Phase::handling)
    reply(number, std::move(response));
  else
    fail(number, std::move(response), "");
}

// The answer must reach a client that is still sending: closing a socket with unread input discards what was written.
void Connection::linger() {
  phase_ = Phase::lingering;
  Error ignored;
  socket_.shutdown(tcp::socket::shutdown_send, ignored);
  arm(kLinger);
  discard();
}

void Connection::discard() {
  buffer_.clear();
  socket_.async_read_some(buffer_.prepare(kReadBuffer), [self = shared_from_this()](Error error, size_t) {
    if (self->phase_ != Phase::lingering) return;
    error ? self->close() : self->discard();
  });
}

}  // namespace sluice::server::http
