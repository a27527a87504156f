// SPDX-License-Identifier: Apache-2.0
#include "server/http/server.h"

#include <fmt/format.h>
#include <sys/socket.h>

#include <algorithm>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "base/error.h"
#include "server/http/connection.h"

namespace sluice::server::http {

namespace asio = boost::asio;
using asio::ip::tcp;
using ErrorCodeOf = boost::system::error_code;

struct Server::Impl {
  Impl() : hub(std::make_shared<Hub>()), acceptor(hub->io), retry(hub->io) {}

  void listen();
  void accept();
  void make_room();
  void refuse(tcp::socket socket);
  void tick(size_t i);
  void run();

  struct Job {
    std::chrono::milliseconds interval;
    std::function<void()> run;
    asio::steady_timer timer;
  };

  std::shared_ptr<Hub> hub;
  tcp::acceptor acceptor;
  asio::steady_timer retry;
  std::vector<Job> jobs;
  std::thread thread;
};

void Server::Impl::listen() {
  const Options& o = hub->options;
  ErrorCodeOf error;
  const std::string host = o.host == "localhost" ? "127.0.0.1" : o.host;
  const auto address = asio::ip::make_address(host, error);
  check(!error, "host is \"{}\"; accepted: an IP address (127.0.0.1, 0.0.0.0, ::1) or localhost", o.host);
  const tcp::endpoint endpoint(address, o.port);
  const auto step = [&](const char* what) {
    if (error) fail(ErrorCode::io, "{} {} port {}: {}", what, o.host, o.port, error.message());
  };
  acceptor.open(endpoint.protocol(), error);
  step("cannot open a socket for");
  acceptor.set_option(asio::socket_base::reuse_address(true), error);
  acceptor.bind(endpoint, error);
  step("cannot listen on");
  acceptor.listen(asio::socket_base::max_listen_connections, error);
  step("cannot listen on");
}

void Server::Impl::accept() {
  acceptor.async_accept(hub->io, [this](ErrorCodeOf error, tcp::socket socket) {
    if (!acceptor.is_open()) return;
    if (error) {
      // Out of descriptors or memory: the listener would report it again at once, for ever.
      retry.expires_after(std::chrono::milliseconds(100));
      retry.async_wait([this](ErrorCodeOf cancelled) {
        if (!cancelled) accept();
      });
      return;
    }
    const int most = hub->options.max_connections;
    if (hub->open >= most) make_room();
    const bool kept = hub->open >= most;
    if (hub->open >= most + (hub->options.kept_paths.empty() ? 0 : hub->options.kept_connections)) {
      refuse(std::move(socket));
    } else {
      ErrorCodeOf ignored;
      socket.set_option(tcp::no_delay(true), ignored);
      std::make_shared<Connection>(hub, std::move(socket), kept)->start();
    }
    accept();
  });
}

// The connection that has waited longest for its request, or for the rest of its head, gives way.
void Server::Impl::make_room() {
  if (hub->waiting.empty()) return;
  const std::shared_ptr<Connection> oldest = hub->waiting.front()->weak_from_this().lock();
  if (!oldest) return;
  ++hub->evicted;
  oldest->close();
}

// Says so without waiting for anything: this path must stay cheap under a flood.
void Server::Impl::refuse(tcp::socket socket) {
  ++hub->refused;
  ++hub->answers[503];
  const std::string body = hub->error_body(
      503, fmt::format("{} connections are open already; try again later", hub->options.max_connections), "");
  const std::string id = hub->options.new_request_id ? hub->options.new_request_id() : "";
  const std::string text = fmt::format(
      "HTTP/1.1 503 {}\r\nServer: sluice\r\nContent-Type: application/json\r\nRetry-After: 1\r\n{}Connection: close\r\n"
      "Content-Length: {}\r\n\r\n{}",
      reason_phrase(503), id.empty() ? "" : fmt::format("X-Request-Id: {}\r\n", id), body.size(), body);
  const int fd = socket.native_handle();
  (void)::send(fd, text.data(), text.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  (void)::shutdown(fd, SHUT_WR);
  char request[4096];  // unread input would turn the close into a reset, which may overtake the answer
  (void)::recv(fd, request, sizeof(request), MSG_DONTWAIT);
}

void Server::Impl::tick(size_t i) {
  Job& job = jobs[i];
  job.timer.expires_after(job.interval);
  job.timer.async_wait([this, i](ErrorCodeOf error) {
    // stop() does not reach a timer whose handler is due already.
    if (error || !acceptor.is_open()) return;
    jobs[i].run();
    tick(i);
  });
}

void Server::Impl::run() {
  while (!hub->stopped) {
    try {
      hub->io.run();
      return;
    } catch (const std::exception&) {
      // One connection's failure (no memory for its body, at most) must not end the others.
    }
  }
}

Server::Server(const Options& options, Handler handler, ErrorBody error_body) : impl_(std::make_unique<Impl>()) {
  impl_->hub->options = options;
  // A body that is accepted alone must fit in, or it would be told to try again for ever.
  impl_->hub->options.buffered_bytes = std::max(options.buffered_bytes, options.body_bytes);
  impl_->hub->handler = std::move(handler);
  impl_->hub->error_body = std::move(error_body);
  impl_->listen();
}

Server::~Server() { stop(); }

uint16_t Server::port() const { return impl_->acceptor.local_endpoint().port(); }

void Server::every(std::chrono::milliseconds interval, std::function<void()> job) {
  impl_->jobs.push_back({interval, std::move(job), asio::steady_timer(impl_->hub->io)});
}

void Server::start() {
  impl_->accept();
  for (size_t i = 0; i < impl_->jobs.size(); ++i) impl_->tick(i);
  impl_->thread = std::thread([this] { impl_->run(); });
}

Stats Server::stats() const {
  const Hub& hub = *impl_->hub;
  Stats out{hub.open, hub.exchanges, hub.refused, hub.evicted, static_cast<int64_t>(hub.buffered)};
  for (size_t status = 0; status < kMostStatus; ++status)
    if (const int64_t n = hub.answers[status]; n > 0) out.answers[static_cast<int>(status)] = n;
  return out;
}

bool Server::wait_until_answered(std::chrono::milliseconds timeout) const {
  const auto end = std::chrono::steady_clock::now() + timeout;
  while (impl_->hub->exchanges > 0) {
    if (std::chrono::steady_clock::now() >= end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

void Server::stop() {
  Hub& hub = *impl_->hub;
  if (hub.stopped) return;
  if (impl_->thread.joinable()) {
    asio::post(hub.io, [this] {
      ErrorCodeOf ignored;
      impl_->acceptor.close(ignored);
      impl_->retry.cancel();
      for (Impl::Job& job : impl_->jobs) job.timer.cancel();
      // close() may end the last reference to a connection, which leaves the set.
      std::vector<std::shared_ptr<Connection>> all;
      for (Connection* c : impl_->hub->connections)
        if (auto alive = c->weak_from_this().lock()) all.push_back(std::move(alive));
      for (const auto& c : all) c->gone();
    });
    impl_->thread.join();  // io.run() returns when nothing is left to wait for
  }
  hub.stopped = true;
  hub.io.restart();
  hub.io.poll();  // what was posted in between
}

}  // namespace sluice::server::http
