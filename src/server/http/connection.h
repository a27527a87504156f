// SPDX-License-Identifier: Apache-2.0
// One connection: reads a request, hands it over, writes the answer, and again. Lives on the server's thread.
#pragma once

#include <array>
#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>

#include "server/http/server.h"

namespace sluice::server::http {

class Connection;

inline constexpr size_t kMostStatus = 600;
inline constexpr size_t kReadBuffer = size_t{64} << 10;
inline constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";

// What the connections share. Only the counters are read by other threads.
struct Hub {
  Options options;
  Server::Handler handler;
  Server::ErrorBody error_body;
  boost::asio::io_context io{1};
  std::unordered_set<Connection*> connections;
  std::list<Connection*> waiting;  // without a complete head, by how long
  std::atomic<int64_t> open{0}, exchanges{0}, refused{0}, evicted{0};
  std::atomic<bool> stopped{false};
  std::atomic<size_t> buffered{0};                          // bytes of request bodies
  std::array<std::atomic<int64_t>, kMostStatus> answers{};  // by status
};

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  // kept: one of Options::kept_connections.
  Connection(std::shared_ptr<Hub> hub, boost::asio::ip::tcp::socket socket, bool kept);
  ~Connection();

  void start() { await_request(hub_->options.first_byte_timeout); }
  void close();
  void gone();  // closes, and says so to whoever answers

  // From Exchange, on the server's thread; `number` says for which request, and a past one is ignored.
  void reply(uint64_t number, Response response);
  void begin_stream(uint64_t number, const Response& head);
  void write(uint64_t number, const std::string& bytes);
  void end(uint64_t number);
  void fail(uint64_t number, Response response, const std::string& last);
  void set_gone(uint64_t number, std::function<void()> callback);
  void abandon(uint64_t number);  // the exchange was destroyed

 private:
  using Error = boost::system::error_code;
  enum class Phase { idle, reading, handling, streaming, finishing, lingering, closed };

  // connection_read.cc
  void await_request(std::chrono::milliseconds timeout);
  void read_first_bytes();
  void read_header();
  void on_header(Error error);
  void send_continue();
  void read_body();
  void on_body(Error error);
  void on_read_error(Error error);
  void hand_over();
  void refuse(int status, std::string_view sentence);
  void note_request();
  Response own_answer(int status, std::string_view sentence);
  bool count_body(size_t bytes);
  void set_waiting(bool waiting);
  bool may_ask() const;

  // connection.cc
  void leave_hub();
  void watch();
  void look_at_peer();
  bool probe_peer();
  void arm(std::chrono::milliseconds timeout);
  void arm_comments();
  void on_deadline();

  // connection_write.cc
  std::string head_text(const Response& response, bool chunked) const;
  void count_answer(int status);
  void send_head();
  void flush();
  void on_written(Error error, size_t bytes);
  void finish_exchange();
  void linger();
  void discard();

  std::shared_ptr<Hub> hub_;
  boost::asio::ip::tcp::socket socket_;
  boost::asio::steady_timer deadline_, watch_timer_, comment_timer_;
  boost::beast::flat_buffer buffer_;
  std::optional<boost::beast::http::request_parser<boost::beast::http::string_body>> parser_;
  Phase phase_ = Phase::idle;
  uint64_t number_ = 0;    // of the request
  std::string path_, id_;  // of the request, as far as they are known; id_: its X-Request-Id
  const bool kept_;
  std::optional<std::list<Connection*>::iterator> place_;  // in hub_->waiting
  bool in_exchange_ = false;
  bool probed_ = false;  // after the peer had ended its side
  bool timed_out_ = false;
  bool keep_alive_ = false, chunked_ = false, head_only_ = false;
  int unsent_status_ = 0;  // of a stream's head that is in out_ and waits for the first bytes; else 0
  bool ended_ = false;     // nothing will be added to pending_
  bool writing_ = false;
  std::string pending_, out_;
  size_t written_ = 0;  // of out_
  size_t counted_ = 0;  // body bytes counted in the hub
  std::function<void()> gone_;
};

}  // namespace sluice::server::http
