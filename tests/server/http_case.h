// SPDX-License-Identifier: Apache-2.0
// What the tests of the HTTP server share: a server by itself, over real sockets.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "server/http/server.h"
#include "tests/server/socket_client.h"

namespace sluice::server::http {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

class HttpTest : public testing::Test {
 protected:
  HttpTest() {
    // Tests of one of them make it short. In all others this thread may rest between any two calls for as long as a
    // busy machine lets it.
    options_.header_timeout = options_.body_timeout = options_.write_timeout = 1h;
    options_.idle_timeout = options_.first_byte_timeout = 1h;
    options_.comment_interval = 1h;
    options_.header_bytes = 2000;
    options_.body_bytes = 10'000;
    options_.max_connections = 20;
  }
  void serve(Server::Handler handler) {
    server_ = std::make_unique<Server>(
        options_, std::move(handler), [](int status, std::string_view sentence, std::string_view path) {
          return std::to_string(status) + ": " + std::string(sentence) + " for " + std::string(path);
        });
    server_->start();
  }
  // Answers with the body; keeps requests for /hold and /stream.
  void serve() {
    serve([this](std::shared_ptr<Exchange> exchange) {
      const std::string path = exchange->request().path;
      if (path == "/throw") throw std::runtime_error("thrown");
      if (path == "/drop") return;
      if (path == "/stream") exchange->begin_stream({.content_type = "text/event-stream"});
      if (path != "/hold" && path != "/stream") return exchange->reply({.body = exchange->request().body});
      exchange->on_gone([this] { ++gone_; });
      const std::lock_guard lock(mutex_);
      held_.push_back(std::move(exchange));
    });
  }
  std::shared_ptr<Exchange> held() {
    for (;; std::this_thread::sleep_for(1ms)) {
      const std::lock_guard lock(mutex_);
      if (held_.empty()) continue;
      auto first = held_.front();
      held_.erase(held_.begin());
      return first;
    }
  }
  static std::string post(std::string_view path, std::string_view body,
                          std::string_view more = "Connection: close\r\n") {
    return "POST " + std::string(path) + " HTTP/1.1\r\nHost: x\r\nContent-Length: " + std::to_string(body.size()) +
           "\r\n" + std::string(more) + "\r\n" + std::string(body);
  }
  std::string ask(std::string_view bytes) {
    Client client(server_->port());
    client.send(bytes);
    return client.rest();
  }
  static bool soon(const std::function<bool()>& condition) {
    for (const auto end = Clock::now() + 60s; Clock::now() < end; std::this_thread::sleep_for(1ms))
      if (condition()) return true;
    return false;
  }

  Options options_;
  std::mutex mutex_;
  std::vector<std::shared_ptr<Exchange>> held_;
  std::atomic<int> gone_{0};
  std::unique_ptr<Server> server_;
};

}  // namespace sluice::server::http
