// SPDX-License-Identifier: Apache-2.0
// A connection to a server of this process, for bytes that no client library would send or at no time that it would.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <string>
#include <string_view>

namespace sluice::server::http {

class Client {
 public:
  explicit Client(uint16_t port) : fd_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const timeval patience{60, 0};
    ::setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    EXPECT_EQ(::connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  }
  ~Client() { close(); }
  void close() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }
  void end_sending() { ::shutdown(fd_, SHUT_WR); }
  void send(std::string_view text) { (void)::send(fd_, text.data(), text.size(), MSG_NOSIGNAL); }
  std::string some() {
    char bytes[65536];
    const ssize_t n = ::recv(fd_, bytes, sizeof(bytes), 0);
    return n > 0 ? std::string(bytes, static_cast<size_t>(n)) : "";
  }
  // What is there, without waiting for more.
  std::string arrived() {
    char bytes[65536];
    const ssize_t n = ::recv(fd_, bytes, sizeof(bytes), MSG_DONTWAIT);
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

}  // namespace sluice::server::http
