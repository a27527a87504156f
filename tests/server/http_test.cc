// SPDX-License-Identifier: Apache-2.0
// The HTTP server by itself, over real sockets: what is bounded, and what happens at each bound.
#include "server/http/server.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <atomic>
#include <mutex>
#include <thread>

#include "base/error.h"

namespace sluice::server::http {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

class Client {
 public:
  explicit Client(uint16_t port) : fd_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const timeval patience{10, 0};
    ::setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    EXPECT_EQ(::connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  }
  ~Client() { close(); }
  void close() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }
  void send(std::string_view text) { (void)::send(fd_, text.data(), text.size(), MSG_NOSIGNAL); }
  std::string some() {
    char bytes[65536];
    const ssize_t n = ::recv(fd_, bytes, sizeof(bytes), 0);
    return n > 0 ? std::string(bytes, static_cast<size_t>(n)) : "";
  }
  std::string rest() {
    std::string all;
    for (std::string piece = some(); !piece.empty(); piece = some()) all += piece;
    return all;
  }
  // Until the text has come; all that came with it.
  std::string until(std::string_view text) {
    std::string all;
    while (all.find(text) == all.npos) {
      const std::string piece = some();
      if (piece.empty()) break;
      all += piece;
    }
    return all;
  }

 private:
  int fd_;
};

class HttpTest : public testing::Test {
 protected:
  HttpTest() {
    options_.header_timeout = 300ms;
    options_.body_timeout = 400ms;
    options_.idle_timeout = 500ms;
    options_.write_timeout = 400ms;
    options_.comment_interval = 60ms;
    options_.header_bytes = 2000;
    options_.body_bytes = 10'000;
    options_.max_connections = 20;
  }
  void serve(Server::Handler handler) {
    server_ = std::make_unique<Server>(options_, std::move(handler), [](int status, std::string_view sentence) {
      return std::to_string(status) + ": " + std::string(sentence);
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
    for (const auto end = Clock::now() + 5s; Clock::now() < end; std::this_thread::sleep_for(1ms))
      if (condition()) return true;
    return false;
  }

  Options options_;
  std::mutex mutex_;
  std::vector<std::shared_ptr<Exchange>> held_;
  std::atomic<int> gone_{0};
  std::unique_ptr<Server> server_;
};

TEST_F(HttpTest, AnswersAndStaysOpen) {
  serve();
  Client client(server_->port());
  for (int i = 0; i < 3; ++i) {
    client.send(post("/", std::to_string(i), ""));
    const std::string answer = client.until("\r\n\r\n" + std::to_string(i));
    EXPECT_TRUE(answer.starts_with("HTTP/1.1 200 OK\r\n")) << answer;
    EXPECT_NE(answer.find("Connection: keep-alive\r\n"), answer.npos);
  }
  EXPECT_TRUE(soon([&] { return server_->stats().exchanges == 0; }));
  EXPECT_EQ(server_->stats().connections, 1);
}

TEST_F(HttpTest, ARequestThatNeverEndsIsToldSo) {
  serve();
  for (const auto& [bytes, least] :
       {std::pair{std::string("POST / HTTP/1.1\r\nHost:"), 250ms},
        {std::string("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nabc"), 350ms}}) {
    const auto begin = Clock::now();
    EXPECT_TRUE(ask(bytes).starts_with("HTTP/1.1 408 Request Timeout\r\n"));
    EXPECT_GE(Clock::now() - begin, least);
  }
}

TEST_F(HttpTest, OneByteNowAndThenDoesNotHelp) {
  serve();
  Client client(server_->port());
  std::thread dribble([&] {
    for (const char c : std::string(40, 'x')) {
      client.send(std::string(1, c));
      std::this_thread::sleep_for(25ms);
    }
  });
  const auto begin = Clock::now();
  EXPECT_TRUE(client.until("408").starts_with("HTTP/1.1 408"));
  EXPECT_LT(Clock::now() - begin, 800ms);
  dribble.join();
}

TEST_F(HttpTest, IdleConnectionsEnd) {
  serve();
  const auto begin = Clock::now();
  EXPECT_EQ(ask(""), "");
  EXPECT_GE(Clock::now() - begin, 450ms);
}

TEST_F(HttpTest, SizesAreBounded) {
  serve();
  EXPECT_TRUE(ask(post("/", std::string(10'000, 'a'))).starts_with("HTTP/1.1 200"));
  EXPECT_TRUE(ask(post("/", std::string(10'001, 'a'))).starts_with("HTTP/1.1 413 Content Too Large"));
  EXPECT_TRUE(ask(post("/", std::string(3'000'000, 'a'))).starts_with("HTTP/1.1 413"));  // and it can still send it
  EXPECT_TRUE(ask(post("/" + std::string(3'000, 'a'), "")).starts_with("HTTP/1.1 431"));
  std::string chunks = "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";
  for (int i = 0; i < 11; ++i) chunks += "3e8\r\n" + std::string(1000, 'a') + "\r\n";
  EXPECT_TRUE(ask(chunks).starts_with("HTTP/1.1 413"));
}

TEST_F(HttpTest, BodiesOfAllConnectionsTogetherAreBounded) {
  options_.buffered_bytes = 15'000;
  serve();
  Client one(server_->port());
  one.send("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9000\r\n\r\n");
  std::this_thread::sleep_for(50ms);
  EXPECT_TRUE(ask(post("/", std::string(9'000, 'a'))).starts_with("HTTP/1.1 503"));
  one.close();
  EXPECT_TRUE(soon([&] { return ask(post("/", std::string(9'000, 'a'))).starts_with("HTTP/1.1 200"); }));
}

TEST_F(HttpTest, TooManyConnectionsAreRefusedAtOnce) {
  serve();
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < 20; ++i) clients.push_back(std::make_unique<Client>(server_->port()));
  ASSERT_TRUE(soon([&] { return server_->stats().connections == 20; }));
  const std::string answer = ask("");
  EXPECT_TRUE(answer.starts_with("HTTP/1.1 503")) << answer;
  EXPECT_NE(answer.find("Retry-After: 1\r\n"), answer.npos);
  EXPECT_EQ(server_->stats().refused, 1);
  clients.clear();
  EXPECT_TRUE(soon([&] { return ask(post("/", "a")).starts_with("HTTP/1.1 200"); }));
}

TEST_F(HttpTest, HandlersThatFailOrForgetAnswer500) {
  serve();
  for (const char* path : {"/throw", "/drop"})
    EXPECT_TRUE(ask(post(path, "")).starts_with("HTTP/1.1 500 Internal Server Error")) << path;
}

TEST_F(HttpTest, AStreamInChunksWithComments) {
  serve();
  Client client(server_->port());
  client.send(post("/stream", "", ""));
  const auto exchange = held();
  exchange->write("data: 1\n\n");
  const std::string head = client.until(": keep-alive\n\n");
  EXPECT_NE(head.find("Transfer-Encoding: chunked\r\n"), head.npos);
  EXPECT_NE(head.find("9\r\ndata: 1\n\n\r\n"), head.npos);
  exchange->end();
  EXPECT_TRUE(client.until("0\r\n\r\n").ends_with("0\r\n\r\n"));
  client.send(post("/", "next"));
  EXPECT_NE(client.rest().find("next"), std::string::npos);
}

TEST_F(HttpTest, Http10StreamsUntilTheConnectionEnds) {
  serve();
  Client client(server_->port());
  client.send("POST /stream HTTP/1.0\r\nContent-Length: 0\r\n\r\n");
  const auto exchange = held();
  exchange->write("plain");
  exchange->end();
  const std::string answer = client.rest();
  EXPECT_EQ(answer.find("chunked"), answer.npos);
  EXPECT_TRUE(answer.ends_with("\r\n\r\nplain"));
}

TEST_F(HttpTest, AClientThatLeavesIsNoticedAtOnce) {
  serve();
  for (const char* path : {"/hold", "/stream"}) {
    const int before = gone_;
    Client client(server_->port());
    client.send(post(path, ""));
    const auto exchange = held();
    const auto begin = Clock::now();
    client.close();
    EXPECT_TRUE(soon([&] { return gone_ > before; }));
    EXPECT_LT(Clock::now() - begin, 400ms) << path;
    exchange->reply({.body = "too late"});
    exchange->write("too late");
    exchange->end();
  }
  // Behind a request that it has already sent, too.
  const int before = gone_;
  Client client(server_->port());
  client.send(post("/hold", "", "") + post("/", "pipelined"));
  const auto exchange = held();
  client.close();
  EXPECT_TRUE(soon([&] { return gone_ > before; }));
}

TEST_F(HttpTest, AClientThatNeverReadsLosesItsConnection) {
  options_.comment_interval = 1h;
  serve();
  Client client(server_->port());
  client.send(post("/stream", ""));
  const auto exchange = held();
  for (int i = 0; i < 100; ++i) exchange->write(std::string(1 << 20, 'a'));  // more than the system's buffers hold
  EXPECT_TRUE(soon([&] { return gone_ == 1; }));
}

TEST_F(HttpTest, StopEndsEverything) {
  serve();
  Client idle(server_->port()), half(server_->port()), waiting(server_->port());
  half.send("POST / HT");
  waiting.send(post("/hold", ""));
  const auto exchange = held();
  server_->stop();
  EXPECT_EQ(idle.rest() + half.rest() + waiting.rest(), "");
  EXPECT_EQ(gone_, 1);
  exchange->reply({.body = "too late"});
}

TEST_F(HttpTest, APortInUseIsNamed) {
  serve();
  options_.port = server_->port();
  try {
    Server second(options_, nullptr, nullptr);
    ADD_FAILURE();
  } catch (const sluice::Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::io);
    EXPECT_NE(std::string(error.what()).find(std::to_string(options_.port)), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace sluice::server::http
