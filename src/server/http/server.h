// SPDX-License-Identifier: Apache-2.0
// The HTTP/1.1 server: one thread, any number of connections, every size and every wait bounded. Boost.Beast parses;
// it is named in connection.cc and server.cc only.
//
// A thread for each connection (what simpler libraries do) was rejected: half-open connections then keep the health
// check waiting, and a client that leaves is noticed only when something is written to it.
// The states of a connection are written by hand because Beast reads and writes messages and leaves the rest (whose
// turn it is, every timeout, a peer that leaves while its answer is made) to its caller.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "server/http/exchange.h"

namespace sluice::server::http {

struct Options {
  std::string host = "127.0.0.1";  // an IP address, or "localhost"
  uint16_t port = 0;               // 0: the system chooses
  // At `max_connections`, the connection that has waited longest without a request gives way to a new one. When all of
  // them are being answered, `kept_connections` more are let in for `kept_paths` alone. Any other is told 503 and
  // closed.
  int max_connections = 1024;
  int kept_connections = 16;
  std::vector<std::string> kept_paths = {};
  size_t header_bytes = size_t{16} << 10;
  size_t body_bytes = size_t{32} << 20;
  size_t buffered_bytes = size_t{256} << 20;  // bodies of all connections together
  // Makes an id for the X-Request-Id of an answer that the server gives by itself, where the client gave none; without
  // it there is none.
  std::function<std::string()> new_request_id = {};
  // Told of every request that the server refuses by itself, on its thread; id: of its X-Request-Id, or "".
  std::function<void(int status, std::string_view id)> on_refusal = {};
  std::chrono::milliseconds first_byte_timeout{10'000};  // of a new connection
  std::chrono::milliseconds header_timeout{10'000};
  std::chrono::milliseconds body_timeout{60'000};
  std::chrono::milliseconds idle_timeout{75'000};      // between requests
  std::chrono::milliseconds write_timeout{30'000};     // without the client taking a byte
  std::chrono::milliseconds comment_interval{15'000};  // of a silent stream
};

struct Stats {
  int64_t connections = 0;              // now
  int64_t exchanges = 0;                // now: requests without a complete answer
  int64_t refused = 0;                  // connections beyond the limit, since the start
  int64_t evicted = 0;                  // connections without a request that gave way to new ones
  int64_t body_bytes = 0;               // now, of requests that are being read or answered
  std::map<int, int64_t> answers = {};  // by status, since the start
};

class Server {
 public:
  // Called on the server's thread for each complete request; must be short. What it throws becomes a 500.
  using Handler = std::function<void(std::shared_ptr<Exchange>)>;
  // The body of an answer that the server gives by itself: a request that is not HTTP, too large or too slow. path: the
  // request's, "" where it is not known.
  using ErrorBody = std::function<std::string(int status, std::string_view sentence, std::string_view path)>;

  // Listens. Throws io when the address cannot be taken, naming it, and invalid_argument for what is no address.
  Server(const Options& options, Handler handler, ErrorBody error_body);
  ~Server();  // stop()

  uint16_t port() const;
  // Accepts and answers, on a thread of its own.
  void start();
  // Calls `job` on the server's thread at every interval, until stop(). Before start() only.
  void every(std::chrono::milliseconds interval, std::function<void()> job);
  Stats stats() const;
  // Waits until every request has its complete answer. False: some have not.
  bool wait_until_answered(std::chrono::milliseconds timeout) const;
  // Closes every connection and ends the thread.
  void stop();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice::server::http
