// SPDX-License-Identifier: Apache-2.0
// Streams of the HTTP server by itself: when the head is sent, what comes in between, and how they end.
#include <gtest/gtest.h>

#include "tests/server/http_case.h"

namespace sluice::server::http {
namespace {

// The bytes of chunks, of which the last is empty: size in hexadecimal, CRLF, bytes, CRLF (RFC 9112, 7.1).
std::string unchunked(std::string_view text) {
  std::string bytes;
  for (size_t size = 1; size > 0;) {
    const size_t line = text.find("\r\n");
    size = std::stoul(std::string(text.substr(0, line)), nullptr, 16);
    bytes += text.substr(line + 2, size);
    EXPECT_EQ(text.substr(line + 2 + size, 2), "\r\n");
    text.remove_prefix(line + 4 + size);
  }
  EXPECT_EQ(text, "");
  return bytes;
}

TEST_F(HttpTest, AStreamInChunksWithComments) {
  options_.comment_interval = 60ms;
  serve();
  Client client(server_->port());
  client.send(post("/stream", "", ""));
  const auto exchange = held();
  exchange->write("data: 1\n\n");
  std::string text = client.until("data: 1\n\n");
  EXPECT_NE(text.find("Transfer-Encoding: chunked\r\n"), text.npos);
  text += client.until(": keep-alive\n\n");
  exchange->end();
  text += client.until("0\r\n\r\n");
  // On a busy machine comments may come before the data as well, and in one chunk with it.
  std::string payload = unchunked(text.substr(text.find("\r\n\r\n") + 4));
  const std::string comment = ": keep-alive\n\n";
  for (size_t at = payload.find(comment); at != payload.npos; at = payload.find(comment))
    payload.erase(at, comment.size());
  EXPECT_EQ(payload, "data: 1\n\n");
  client.send(post("/", "next"));
  EXPECT_NE(client.rest().find("next"), std::string::npos);
}

// A router asks another server for a request as long as it has not seen an answer's head.
TEST_F(HttpTest, TheHeadOfAStreamComesWithItsFirstChunkOrComment) {
  for (const bool comment : {false, true}) {
    options_.comment_interval = comment ? 500ms : 3'600'000ms;
    serve();
    Client client(server_->port());
    const auto begin = Clock::now();
    client.send(post("/stream", "", ""));
    const auto exchange = held();
    std::this_thread::sleep_for(200ms);
    std::string text = client.arrived();
    // On a busy machine the comment may have come already.
    if (Clock::now() - begin < options_.comment_interval) {
      EXPECT_EQ(text, "");
    }
    if (!comment) exchange->write("data: 1\n\n");
    text += client.until(comment ? ": keep-alive\n\n" : "data: 1\n\n");
    EXPECT_TRUE(text.starts_with("HTTP/1.1 200 OK")) << text;
    exchange->end();
  }
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

// Whoever has seen nothing of a stream can be told a status, and keeps the connection.
TEST_F(HttpTest, AStreamThatFailsBeforeItsHeadIsSentIsAReply) {
  serve();
  Client client(server_->port());
  client.send(post("/stream", "", ""));
  held()->fail({.status = 503, .body = "later", .headers = {{"Retry-After", "1"}}}, "unsaid");
  const std::string refused = client.until("later");
  EXPECT_TRUE(refused.starts_with("HTTP/1.1 503 Service Unavailable\r\n")) << refused;
  EXPECT_NE(refused.find("Retry-After: 1\r\n"), refused.npos) << refused;
  EXPECT_EQ(refused.find("unsaid"), refused.npos) << refused;
  client.send(post("/stream", ""));
  const auto begun = held();
  begun->write("data: 1\n\n");
  begun->fail({.status = 503, .body = "later"}, "data: failed\n\n");
  const std::string text = client.rest();
  EXPECT_TRUE(text.starts_with("HTTP/1.1 200 OK\r\n")) << text;
  EXPECT_EQ(unchunked(text.substr(text.find("\r\n\r\n") + 4)), "data: 1\n\ndata: failed\n\n");
  client.close();
  EXPECT_EQ(server_->stats().answers, (std::map<int, int64_t>{{200, 1}, {503, 1}}));
}

TEST_F(HttpTest, AStreamThatIsForgottenAnswers500) {
  serve();
  Client client(server_->port());
  client.send(post("/stream", ""));
  held().reset();
  EXPECT_TRUE(client.rest().starts_with("HTTP/1.1 500 Internal Server Error\r\n"));
}

// A peer that has ended its side is looked for without the head; HTTP/1.0 has nothing else to look with.
TEST_F(HttpTest, TheHeadOfAStreamIsNotSentToLookForThePeer) {
  serve();
  for (const bool old : {false, true}) {
    Client client(server_->port());
    client.send(old ? "POST /stream HTTP/1.0\r\nContent-Length: 0\r\n\r\n" : post("/stream", ""));
    client.end_sending();
    const auto exchange = held();
    std::string text = client.until("\r\n\r\n");
    EXPECT_TRUE(text.starts_with(old ? "HTTP/1.1 200 OK\r\n" : "HTTP/1.1 100 Continue\r\n")) << text;
    exchange->fail({.status = 503, .body = "later"}, "failed");
    text += client.rest();
    EXPECT_EQ(text.find("HTTP/1.1 503 ") != text.npos, !old) << text;
    EXPECT_TRUE(text.ends_with(old ? "failed" : "later")) << text;
    EXPECT_EQ(gone_, 0);
  }
}

TEST_F(HttpTest, AClientThatNeverReadsLosesItsConnection) {
  options_.comment_interval = 1h;
  options_.write_timeout = 400ms;
  serve();
  Client client(server_->port());
  client.send(post("/stream", ""));
  const auto exchange = held();
  for (int i = 0; i < 100; ++i) exchange->write(std::string(1 << 20, 'a'));  // more than the system's buffers hold
  EXPECT_TRUE(soon([&] { return gone_ == 1; }));
}

}  // namespace
}  // namespace sluice::server::http
