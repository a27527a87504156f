// SPDX-License-Identifier: Apache-2.0
// Connection: a request's head and body, and the hand-over to whoever answers it.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/http/read.hpp>
#include <utility>

#include "server/http/connection.h"
#include "server/http/framing.h"

namespace sluice::server::http {

namespace asio = boost::asio;
namespace beast = boost::beast;
using asio::ip::tcp;

namespace {
constexpr size_t kFirstRead = 4096;

class ConnectionExchange final : public Exchange {
 public:
  ConnectionExchange(std::shared_ptr<Hub> hub, std::shared_ptr<Connection> connection, uint64_t number, Request request)
      : hub_(std::move(hub)), connection_(std::move(connection)), number_(number), request_(std::move(request)) {}
  // The connection goes along: where this was its last reference, it must end on the server's thread.
  ~ConnectionExchange() override {
    if (hub_->stopped) return;
    asio::post(hub_->io, [c = std::move(connection_), number = number_] { c->abandon(number); });
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
  void fail(Response reply, std::string last) override {
    on_server([number = number_, r = std::move(reply), b = std::move(last)](Connection& c) mutable {
      c.fail(number, std::move(r), b);
    });
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

// The authority of a target in absolute-form, as proxies write it; the target becomes a path. It takes the place of the
// Host header (RFC 9112, 3.2.2), so that the check of names sees what was meant.
std::string take_authority(std::string& target) {
  constexpr std::string_view kScheme = "http://";
  if (target.size() < kScheme.size() || !equal_ignoring_case(target.substr(0, kScheme.size()), kScheme)) return {};
  const size_t path = target.find_first_of("/?", kScheme.size());
  const std::string authority = target.substr(kScheme.size(), path - kScheme.size());
  target = path == target.npos ? "/" : target.substr(path);
  if (target.front() == '?') target.insert(0, "/");
  return authority;
}

std::string path_of(std::string target) {
  take_authority(target);
  return target.substr(0, target.find('?'));
}
}  // namespace

// Its place in the line of those that may have to give way.
void Connection::set_waiting(bool waiting) {
  if (waiting && !place_) place_ = hub_->waiting.insert(hub_->waiting.end(), this);
  if (!waiting && place_) hub_->waiting.erase(*std::exchange(place_, std::nullopt));
}

void Connection::await_request(std::chrono::milliseconds timeout) {
  phase_ = Phase::idle;
  set_waiting(true);
  parser_.reset();
  count_body(0);
  arm(timeout);
  if (buffer_.size() > 0) return read_header();
  read_first_bytes();
}

void Connection::read_first_bytes() {
  socket_.async_wait(tcp::socket::wait_read, [self = shared_from_this()](Error error) {
    if (self->phase_ != Phase::idle) return;
    if (error) return self->close();
    const size_t bytes = self->socket_.read_some(self->buffer_.prepare(kFirstRead), error);
    if (error == asio::error::would_block || error == asio::error::try_again) return self->read_first_bytes();
    if (error) return self->close();
    self->buffer_.commit(bytes);
    self->read_header();
  });
}

void Connection::read_header() {
  // Empty lines before a request: some clients send one after the body of the last one (RFC 9112, 2.2).
  while (buffer_.size() > 0) {
    const auto* bytes = static_cast<const char*>(buffer_.data().data());
    if (bytes[0] == '\r' && buffer_.size() == 1) break;  // the other half is on its way
    if (bytes[0] != '\r' || bytes[1] != '\n') break;
    buffer_.consume(2);
  }
  if (buffer_.size() < 2) return read_first_bytes();
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
  set_waiting(false);
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
  const size_t all = hub_->buffered - counted_ + bytes;
  if (bytes > counted_ && all > hub_->options.buffered_bytes) return false;
  hub_->buffered = all;
  counted_ = bytes;
  return true;
}

void Connection::hand_over() {
  deadline_.cancel();
  note_request();
  if (!may_ask())
    return refuse(503, fmt::format("{} connections are open already, and the last places are kept for {}; try again "
                                   "later",
                                   hub_->options.max_connections, fmt::join(hub_->options.kept_paths, ", ")));
  auto message = parser_->release();
  Request request;
  request.method = text_of(message.method_string());
  std::string target = text_of(message.target());
  if (const std::string authority = take_authority(target); !authority.empty())
    message.set(beast::http::field::host, authority);
  request.path = path_;
  if (const size_t question = target.find('?'); question != target.npos) request.query = target.substr(question + 1);
  for (const auto& field : message) request.headers.push_back({text_of(field.name_string()), text_of(field.value())});
  request.body = std::move(message.body());

  keep_alive_ = message.keep_alive();
  chunked_ = message.version() >= 11;
  head_only_ = request.method == "HEAD";
  if (kept_) keep_alive_ = false;  // the place is for the next one
  ended_ = false;
  probed_ = false;
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
    reply(number, own_answer(500, error.what()));
  }
}

bool Connection::may_ask() const {
  if (!kept_ || hub_->open <= hub_->options.max_connections) return true;
  const auto& paths = hub_->options.kept_paths;
  return std::find(paths.begin(), paths.end(), path_) != paths.end();
}

// For answers of the server's own, also to a head that is not complete.
void Connection::note_request() {
  path_ = parser_ ? path_of(text_of(parser_->get().target())) : "";
  id_ = parser_ ? text_of(parser_->get()["X-Request-Id"]) : "";
  if (!is_request_id(id_)) id_.clear();
}

Response Connection::own_answer(int status, std::string_view sentence) {
  if (id_.empty() && hub_->options.new_request_id) id_ = hub_->options.new_request_id();
  Response response{.status = status, .body = hub_->error_body(status, sentence, path_)};
  if (status == 503) response.headers.push_back({"Retry-After", "1"});
  if (!id_.empty()) response.headers.push_back({"X-Request-Id", id_});
  return response;
}

void Connection::refuse(int status, std::string_view sentence) {
  ++number_;
  set_waiting(false);
  keep_alive_ = false;
  chunked_ = false;
  head_only_ = false;
  pending_.clear();
  phase_ = Phase::handling;
  if (!in_exchange_) {
    in_exchange_ = true;
    ++hub_->exchanges;
  }
  note_request();
  Response response = own_answer(status, sentence);
  response.close = true;
  if (hub_->options.on_refusal) hub_->options.on_refusal(status, id_);
  reply(number_, std::move(response));
}

}  // namespace sluice::server::http
