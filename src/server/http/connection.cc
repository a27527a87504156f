// SPDX-License-Identifier: Apache-2.0
#include "server/http/connection.h"

#include <fmt/format.h>
#include <poll.h>

#include <boost/asio/buffer.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/http/read.hpp>
#include <utility>

#include "server/http/framing.h"

namespace sluice::server::http {

namespace asio = boost::asio;
namespace beast = boost::beast;
using asio::ip::tcp;

namespace {
constexpr std::chrono::milliseconds kFirstLook{50};   // most requests are answered before anyone needs to watch
constexpr std::chrono::milliseconds kLookAgain{200};  // behind unread input a closed peer shows only to poll()
constexpr std::chrono::milliseconds kLinger{2'000};
constexpr size_t kReadBuffer = size_t{64} << 10;

class ConnectionExchange final : public Exchange {
 public:
  ConnectionExchange(std::shared_ptr<Hub> hub, std::shared_ptr<Connection> connection, uint64_t number, Request request)
      : hub_(std::move(hub)), connection_(std::move(connection)), number_(number), request_(std::move(request)) {}
  ~ConnectionExchange() override {
    on_server([number = number_](Connection& c) { c.abandon(number); });
  }

  const Request& request() const override { return request_; }
  void reply(Response response) override {
    on_server([number = number_, r = std::move(response)](Connection& c) mutable { c.reply(number, std::move(r)); });
  }
  void begin_stream(Response head) override {
    on_server([number = number_, h = std::move(head)](Connection& c) { c.begin_stream(number, h); });
  }
  void write(std::string bytes) override {
    on_server([number = number_, b = std::move(bytes)](Connection& c) { c.write(number, b); });
  }
  void end() override {
    on_server([number = number_](Connection& c) { c.end(number); });
  }
  void on_gone(std::function<void()> callback) override {
    on_server([number = number_, f = std::move(callback)](Connection& c) mutable { c.set_gone(number, std::move(f)); });
  }
  void post(std::function<void()> job) override {
    if (!hub_->stopped) asio::post(hub_->io, std::move(job));
  }

 private:
  template <class F>
  void on_server(F&& f) {
    if (hub_->stopped) return;
    asio::post(hub_->io, [c = connection_, f = std::forward<F>(f)]() mutable { f(*c); });
  }

  std::shared_ptr<Hub> hub_;
  std::shared_ptr<Connection> connection_;
  uint64_t number_;
  Request request_;
};

std::string text_of(beast::string_view s) { return {s.data(), s.size()}; }
}  // namespace

Connection::Connection(std::shared_ptr<Hub> hub, tcp::socket socket)
    : hub_(std::move(hub)),
      socket_(std::move(socket)),
      deadline_(hub_->io),
      watch_timer_(hub_->io),
      comment_timer_(hub_->io),
      buffer_(std::max(kReadBuffer, hub_->options.header_bytes)) {
  hub_->connections.insert(this);
  ++hub_->open;
}

Connection::~Connection() {
  hub_->connections.erase(this);
  --hub_->open;
  count_body(0);
}

void Connection::close() {
  if (phase_ == Phase::closed) return;
  phase_ = Phase::closed;
  Error ignored;
  socket_.close(ignored);
  deadline_.cancel();
  watch_timer_.cancel();
  comment_timer_.cancel();
  finish_exchange();
}

// ---- reading

void Connection::await_request() {
  phase_ = Phase::idle;
  parser_.reset();
  count_body(0);
  arm(hub_->options.idle_timeout);
  if (buffer_.size() > 0) return read_header();
  socket_.async_wait(tcp::socket::wait_read, [self = shared_from_this()](Error error) {
    if (self->phase_ != Phase::idle) return;
    error ? self->close() : self->read_header();
  });
}

void Connection::read_header() {
  phase_ = Phase::reading;
  parser_.emplace();
  parser_->header_limit(static_cast<uint32_t>(hub_->options.header_bytes));
  parser_->body_limit(hub_->options.body_bytes);
  arm(hub_->options.header_timeout);
  beast::http::async_read_header(socket_, buffer_, *parser_,
                                 [self = shared_from_this()](Error error, size_t) { self->on_header(error); });
}

void Connection::on_header(Error error) {
  if (phase_ != Phase::reading) return;
  if (error) return on_read_error(error);
  if (const std::string wrong = framing_fault(parser_->get()); !wrong.empty()) return refuse(400, wrong);
  parser_->eager(true);
  arm(hub_->options.body_timeout);
  if (const auto length = parser_->content_length(); length && !count_body(static_cast<size_t>(*length)))
    return refuse(503, "the bodies of the requests that are being read fill the server's memory for them");
  const auto expect = parser_->get()[beast::http::field::expect];
  if (!expect.empty() && !parser_->is_done() && equal_ignoring_case({expect.data(), expect.size()}, "100-continue"))
    return send_continue();
  read_body();
}

void Connection::send_continue() {
  static constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
  asio::async_write(socket_, asio::buffer(kContinue.data(), kContinue.size()),
                    [self = shared_from_this()](Error error, size_t) {
                      if (self->phase_ != Phase::reading) return;
                      error ? self->close() : self->read_body();
                    });
}

void Connection::read_body() {
  if (parser_->is_done()) return hand_over();
  beast::http::async_read_some(socket_, buffer_, *parser_,
                               [self = shared_from_this()](Error error, size_t) { self->on_body(error); });
}

void Connection::on_body(Error error) {
  if (phase_ != Phase::reading) return;
  if (error) return on_read_error(error);
  if (!count_body(std::max(counted_, parser_->get().body().size())))
    return refuse(503, "the bodies of the requests that are being read fill the server's memory for them");
  read_body();
}

void Connection::on_read_error(Error error) {
  using Http = beast::http::error;
  if (timed_out_)
    return refuse(
        408,
        fmt::format(
            "the request was not complete after {} s",
            (parser_ && parser_->is_header_done() ? hub_->options.body_timeout : hub_->options.header_timeout).count() /
                1000.0));
  if (error == Http::header_limit || error == Http::buffer_overflow)
    return refuse(431, fmt::format("the request's head is longer than {} bytes", hub_->options.header_bytes));
  if (error == Http::body_limit)
    return refuse(413, fmt::format("the request's body is longer than {} bytes", hub_->options.body_bytes));
  // A client that ends the connection, cleanly or within a request, expects nothing.
  if (error == Http::end_of_stream || error == Http::partial_message ||
      error.category() != beast::http::make_error_code(Http::end_of_stream).category())
    return close();
  refuse(400, fmt::format("this is not an HTTP/1.1 request: {}", error.message()));
}

// Keeps the hub's sum; false, and nothing counted, when all bodies together would be too much.
bool Connection::count_body(size_t bytes) {
  if (bytes > counted_ && hub_->buffered - counted_ + bytes > hub_->options.buffered_bytes) return false;
  hub_->buffered = hub_->buffered - counted_ + bytes;
  counted_ = bytes;
  return true;
}

void Connection::hand_over() {
  deadline_.cancel();
  auto message = parser_->release();
  Request request;
  request.method = text_of(message.method_string());
  std::string target = text_of(message.target());
  if (target.starts_with("http://")) {  // absolute-form, as proxies write it
    const size_t path = target.find('/', 7);
    target = path == target.npos ? "/" : target.substr(path);
  }
  const size_t question = target.find('?');
  request.path = target.substr(0, question);
  if (question != target.npos) request.query = target.substr(question + 1);
  for (const auto& field : message) request.headers.push_back({text_of(field.name_string()), text_of(field.value())});
  request.body = std::move(message.body());

  keep_alive_ = message.keep_alive();
  chunked_ = message.version() >= 11;
  head_only_ = request.method == "HEAD";
  ended_ = false;
  pending_.clear();
  phase_ = Phase::handling;
  in_exchange_ = true;
  ++hub_->exchanges;
  const uint64_t number = ++number_;
  auto exchange = std::make_shared<ConnectionExchange>(hub_, shared_from_this(), number, std::move(request));
  watch();
  try {
    hub_->handler(exchange);
  } catch (const std::exception& error) {
    reply(number, {.status = 500, .body = hub_->error_body(500, error.what())});
  }
}

void Connection::refuse(int status, std::string_view sentence) {
  ++number_;
  keep_alive_ = false;
  chunked_ = false;
  head_only_ = false;
  pending_.clear();
  phase_ = Phase::handling;
  if (!in_exchange_) {
    in_exchange_ = true;
    ++hub_->exchanges;
  }
  reply(number_, {.status = status, .body = hub_->error_body(status, sentence), .close = true});
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

void Connection::look_at_peer() {
  pollfd state{socket_.native_handle(), POLLRDHUP, 0};
  if (::poll(&state, 1, 0) > 0 && (state.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0) return gone();
  watch_timer_.expires_after(kLookAgain);
  watch_timer_.async_wait([self = shared_from_this(), number = number_](Error error) {
    if (!error && number == self->number_ && self->in_exchange_) self->look_at_peer();
  });
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

// ---- writing

std::string Connection::head_text(const Response& response, bool chunked) const {
  std::string text =
      fmt::format("HTTP/1.1 {} {}\r\nServer: sluice\r\n", response.status, reason_phrase(response.status));
  if (response.status != 204) text += fmt::format("Content-Type: {}\r\n", response.content_type);
  for (const Header& h : response.headers) text += fmt::format("{}: {}\r\n", h.name, h.value);
  text += keep_alive_ ? "Connection: keep-alive\r\n" : "Connection: close\r\n";
  return text + (chunked ? "Transfer-Encoding: chunked\r\n" : "");
}

void Connection::reply(uint64_t number, Response response) {
  if (number != number_ || phase_ != Phase::handling) return;
  if (response.close) keep_alive_ = false;
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
  keep_alive_ = keep_alive_ && chunked_;  // without chunks, the end of the connection is the end of the answer
  out_ = head_text(head, chunked_) + "\r\n";
  written_ = 0;
  phase_ = Phase::streaming;
  arm_comments();
  flush();
}

void Connection::write(uint64_t number, const std::string& bytes) {
  if (number != number_ || phase_ != Phase::streaming || ended_) return;
  pending_ += bytes;
  flush();
}

void Connection::end(uint64_t number) {
  if (number != number_ || phase_ != Phase::streaming || ended_) return;
  ended_ = true;
  comment_timer_.cancel();
  flush();
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
      return keep_alive_ ? await_request() : linger();
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
  if (number != number_) return;
  if (phase_ == Phase::handling)
    reply(number, {.status = 500, .body = hub_->error_body(500, "the request ended without an answer")});
  else if (phase_ == Phase::streaming && !ended_)
    end(number);
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
    self->write(number, ": keep-alive\n\n");
    self->arm_comments();
  });
}

}  // namespace sluice::server::http
