// SPDX-License-Identifier: Apache-2.0
// The HTTP server by itself, over real sockets: what is bounded, and what happens at each bound.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <thread>

#include "base/error.h"
#include "tests/server/http_case.h"

namespace sluice::server::http {
namespace {

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
  const auto expect_408 = [&](std::string_view bytes) {
    serve();
    const auto begin = Clock::now();
    EXPECT_TRUE(ask(bytes).starts_with("HTTP/1.1 408 Request Timeout\r\n"));
    EXPECT_GE(Clock::now() - begin, 350ms);
  };
  // One bound at a time: a busy machine may take longer to read the head of the second than the head's bound.
  options_.header_timeout = 400ms;
  expect_408("POST / HTTP/1.1\r\nHost:");
  options_.header_timeout = 1h;
  options_.body_timeout = 400ms;
  expect_408("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nabc");
}

TEST_F(HttpTest, OneByteNowAndThenDoesNotHelp) {
  options_.header_timeout = 300ms;
  serve();
  Client client(server_->port());
  std::atomic<bool> answered = false;
  std::atomic<int> sent = 0;
  constexpr int kMost = 400;  // 10 s at least: a timeout that begins anew with each byte ends after the last
  std::thread dribble([&] {
    for (; sent < kMost && !answered; ++sent) {
      client.send("x");
      std::this_thread::sleep_for(25ms);
    }
  });
  EXPECT_TRUE(client.until("408").starts_with("HTTP/1.1 408"));
  answered = true;
  dribble.join();
  EXPECT_LT(sent.load(), kMost);
}

TEST_F(HttpTest, IdleConnectionsEnd) {
  options_.idle_timeout = options_.first_byte_timeout = 500ms;
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
  EXPECT_TRUE(soon([&] { return ask(post("/", std::string(9'000, 'a'))).starts_with("HTTP/1.1 503"); }));
  one.close();
  EXPECT_TRUE(soon([&] { return ask(post("/", std::string(9'000, 'a'))).starts_with("HTTP/1.1 200"); }));
}

TEST_F(HttpTest, TheOldestConnectionWithoutARequestGivesWay) {
  serve();
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < 20; ++i) clients.push_back(std::make_unique<Client>(server_->port()));
  clients[1]->send("POST / HTTP/1.1\r\nHost:");  // half a head is no request
  clients[2]->send(post("/hold", ""));
  const auto exchange = held();
  ASSERT_TRUE(soon([&] { return server_->stats().connections == 20; }));
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(ask(post("/", "a")).starts_with("HTTP/1.1 200"));
  EXPECT_EQ(clients[0]->rest(), "");
  clients.push_back(std::make_unique<Client>(server_->port()));
  EXPECT_TRUE(soon([&] { return server_->stats().connections == 20; }));
  clients.push_back(std::make_unique<Client>(server_->port()));
  EXPECT_EQ(clients[1]->rest(), "");
  EXPECT_EQ(server_->stats().refused, 0);
  EXPECT_EQ(server_->stats().evicted, 2);
  exchange->reply({.body = "kept"});  // what is answered is never cut
  EXPECT_NE(clients[2]->until("kept").find("kept"), std::string::npos);
}

TEST_F(HttpTest, PlacesAreKeptForSomePaths) {
  options_.max_connections = 3;
  options_.kept_connections = 2;
  options_.kept_paths = {"/health"};
  serve();
  std::vector<std::unique_ptr<Client>> clients;
  std::vector<std::shared_ptr<Exchange>> exchanges;
  for (int i = 0; i < 3; ++i) {
    clients.push_back(std::make_unique<Client>(server_->port()));
    clients.back()->send(post("/hold", "", ""));
    exchanges.push_back(held());
  }
  for (int i = 0; i < 4; ++i) {
    const std::string answer = ask(post("/health", "ok", ""));  // it closes, to let the next one in
    EXPECT_TRUE(answer.starts_with("HTTP/1.1 200")) << answer;
  }
  const std::string refused = ask(post("/", "a"));
  EXPECT_TRUE(refused.starts_with("HTTP/1.1 503"));
  EXPECT_NE(refused.find("Retry-After: 1\r\n"), refused.npos) << refused;
  // The kept places can be taken too; silent ones give way.
  Client silent(server_->port()), other(server_->port());
  EXPECT_TRUE(ask(post("/health", "ok", "")).starts_with("HTTP/1.1 200"));
  const int64_t before = server_->stats().refused;
  for (auto& exchange : exchanges) exchange->reply({.body = "late"});
  EXPECT_TRUE(soon([&] { return ask(post("/", "a")).starts_with("HTTP/1.1 200"); }));
  EXPECT_EQ(server_->stats().refused, before);
  EXPECT_GT(server_->stats().answers.at(200), 5);
  EXPECT_GE(server_->stats().answers.at(503), 1);
}

// The form of a refusal is that of its path's API.
TEST_F(HttpTest, WhatIsRefusedBeforeItIsReadHasItsPath) {
  serve();
  const std::string large = std::to_string(options_.body_bytes + 1);
  for (const char* target : {"/a/b?c=/d", "http://x/a/b", "http://y/a/b?c"})
    EXPECT_TRUE(ask("POST " + std::string(target) + " HTTP/1.1\r\nHost: x\r\nContent-Length: " + large + "\r\n\r\n")
                    .ends_with(" for /a/b"));
  EXPECT_TRUE(ask("GET /a/b HTTP/1.1\r\n\r\n").ends_with(" for /a/b"));  // no Host
  EXPECT_TRUE(ask("garbage\r\n\r\n").ends_with(" for "));
  EXPECT_TRUE(ask(post("/throw", "")).ends_with("thrown for /throw"));
  EXPECT_TRUE(ask(post("/drop", "")).ends_with(" for /drop"));
}

TEST_F(HttpTest, WhenEverythingIsTakenNewOnesAreRefusedAtOnce) {
  options_.max_connections = 2;
  options_.new_request_id = [] { return "made"; };
  serve();
  std::vector<std::unique_ptr<Client>> clients;
  std::vector<std::shared_ptr<Exchange>> exchanges;
  for (int i = 0; i < 2; ++i) {
    clients.push_back(std::make_unique<Client>(server_->port()));
    clients.back()->send(post("/hold", ""));
    exchanges.push_back(held());
  }
  const std::string answer = ask("");
  EXPECT_TRUE(answer.starts_with("HTTP/1.1 503")) << answer;
  EXPECT_NE(answer.find("Retry-After: 1\r\n"), answer.npos);
  EXPECT_NE(answer.find("X-Request-Id: made\r\n"), answer.npos);
  EXPECT_EQ(server_->stats().refused, 1);
  exchanges.clear();
  EXPECT_TRUE(soon([&] { return ask(post("/", "a")).starts_with("HTTP/1.1 200"); }));
}

TEST_F(HttpTest, TheFirstByteHasATimeOfItsOwn) {
  EXPECT_EQ(Options().first_byte_timeout, 10s);
  options_.first_byte_timeout = 200ms;
  serve();
  const auto begin = Clock::now();
  EXPECT_EQ(ask(""), "");
  EXPECT_GE(Clock::now() - begin, 150ms);
  std::unique_ptr<Client> kept;
  ASSERT_TRUE(soon([&] {  // this thread may be too late with its first byte
    kept = std::make_unique<Client>(server_->port());
    kept->send(post("/", "once", ""));
    return kept->until("once").ends_with("once");
  }));
  std::this_thread::sleep_for(400ms);  // between requests it may wait longer
  kept->send(post("/", "twice", ""));
  EXPECT_NE(kept->until("twice").find("twice"), std::string::npos);
}

TEST_F(HttpTest, AClientThatOnlyEndsItsSideGetsItsAnswer) {
  serve();
  for (const bool stream : {false, true}) {
    Client client(server_->port());
    client.send(post(stream ? "/stream" : "/hold", ""));
    client.end_sending();
    const auto exchange = held();
    std::this_thread::sleep_for(500ms);
    if (stream) {
      exchange->write("the answer");
      exchange->end();
    } else {
      exchange->reply({.body = "the answer"});
    }
    const std::string answer = client.rest();
    EXPECT_NE(answer.find("HTTP/1.1 200 OK"), answer.npos) << answer;
    EXPECT_NE(answer.find("the answer"), answer.npos) << answer;
    EXPECT_EQ(gone_, 0);
  }
}

TEST_F(HttpTest, EmptyLinesBeforeARequest) {
  serve();
  for (const char* before : {"\r\n", "\r\n\r\n\r\n"}) {
    EXPECT_NE(ask(before + post("/", "text")).find("text"), std::string::npos);
    Client client(server_->port());  // in pieces, and between two requests
    for (const char c : std::string(before) + post("/", "first", "") + before + "P") {
      client.send(std::string(1, c));
      std::this_thread::sleep_for(1ms);
    }
    client.send(post("/", "second").substr(1));
    const std::string answers = client.rest();
    EXPECT_NE(answers.find("first"), answers.npos);
    EXPECT_NE(answers.find("second"), answers.npos) << answers;
  }
  EXPECT_TRUE(ask("\n" + post("/", "text")).starts_with("HTTP/1.1 400"));
}

TEST_F(HttpTest, FoldedHeadersAreOneLineOrRefused) {
  std::string seen;
  serve([&](std::shared_ptr<Exchange> exchange) {
    seen = exchange->request().header("X-Folded");
    exchange->reply({.body = "read"});
  });
  const std::string answer = ask("GET / HTTP/1.1\r\nHost: x\r\nX-Folded: one\r\n  two\r\nConnection: close\r\n\r\n");
  if (answer.starts_with("HTTP/1.1 200")) {  // RFC 9112, 5.2: a server may do either
    EXPECT_EQ(seen.find_first_of("\r\n"), seen.npos);
    EXPECT_TRUE(seen.starts_with("one ") && seen.ends_with(" two")) << seen;
  } else {
    EXPECT_TRUE(answer.starts_with("HTTP/1.1 400")) << answer;
  }
}

TEST_F(HttpTest, TheAbsoluteFormsHostIsTheHost) {
  std::string host, path, query;
  serve([&](std::shared_ptr<Exchange> exchange) {
    host = exchange->request().header("Host");
    path = exchange->request().path;
    query = exchange->request().query;
    exchange->reply({.body = "read"});
  });
  const struct {
    const char *target, *host, *path, *query;
  } cases[]{{"/a?b", "right", "/a", "b"},
            {"http://evil.example/a?b", "evil.example", "/a", "b"},
            {"HTTP://evil.example:80/", "evil.example:80", "/", ""},
            {"http://evil.example", "evil.example", "/", ""},
            {"http://evil.example?q", "evil.example", "/", "q"}};
  for (const auto& c : cases) {
    ask(fmt::format("GET {} HTTP/1.1\r\nHost: right\r\nConnection: close\r\n\r\n", c.target));
    EXPECT_EQ(host, c.host) << c.target;
    EXPECT_EQ(path, c.path) << c.target;
    EXPECT_EQ(query, c.query) << c.target;
  }
}

TEST_F(HttpTest, ABodyThatIsAcceptedAloneIsNeverToldToTryAgain) {
  options_.buffered_bytes = 5'000;  // less than body_bytes
  serve();
  EXPECT_TRUE(ask(post("/", std::string(9'000, 'a'))).starts_with("HTTP/1.1 200"));
}

TEST_F(HttpTest, HandlersThatFailOrForgetAnswer500) {
  options_.new_request_id = [] { return "made"; };
  serve();
  for (const char* path : {"/throw", "/drop"}) {
    const std::string answer = ask(post(path, ""));
    EXPECT_TRUE(answer.starts_with("HTTP/1.1 500 Internal Server Error")) << path;
    EXPECT_NE(answer.find("X-Request-Id: made\r\n"), answer.npos) << answer;
    const std::string named = ask(post(path, "", "X-Request-Id: mine\r\nConnection: close\r\n"));
    EXPECT_NE(named.find("X-Request-Id: mine\r\n"), named.npos) << named;
  }
}

TEST_F(HttpTest, AClientThatLeavesIsNoticedAtOnce) {
  serve();
  for (const char* path : {"/hold", "/stream"}) {
    const int before = gone_;
    Client client(server_->port());
    client.send(post(path, ""));
    const auto exchange = held();
    client.close();
    EXPECT_TRUE(soon([&] { return gone_ > before; })) << path;
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

// Threads let go of exchanges whenever they like: before and after the peer has left, before and after the server's
// end.
TEST_F(HttpTest, ExchangesEndOnAnyThread) {
  for (const bool after_the_end : {false, true}) {
    serve();
    std::vector<std::thread> threads;
    for (int t = 0; t < 3; ++t)
      threads.emplace_back([&] {
        for (int i = 0; i < 100; ++i) {
          Client client(server_->port());
          client.send(post("/hold", ""));
          const auto exchange = held();
          client.close();
          if (i % 2 == 0) std::this_thread::yield();
        }
      });
    for (std::thread& t : threads) t.join();
    EXPECT_TRUE(soon([&] { return server_->stats().connections == 0; }));
    std::vector<std::unique_ptr<Client>> clients;
    std::vector<std::shared_ptr<Exchange>> exchanges;
    for (int i = 0; i < 4; ++i) {
      clients.push_back(std::make_unique<Client>(server_->port()));
      clients.back()->send(post("/hold", ""));
      exchanges.push_back(held());
    }
    if (after_the_end) server_->stop();
    threads.clear();
    for (auto& exchange : exchanges) threads.emplace_back([last = std::move(exchange)]() mutable { last = nullptr; });
    for (std::thread& t : threads) t.join();
  }
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
