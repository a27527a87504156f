// SPDX-License-Identifier: Apache-2.0
#include "http_stream.h"

#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>

#include "base/error.h"

namespace sluice::apps {

namespace {
class Connection {
 public:
  explicit Connection(const HttpTarget& target) {
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* found = nullptr;
    const int failed = ::getaddrinfo(target.host.c_str(), target.port.c_str(), &hints, &found);
    if (failed != 0) fail(ErrorCode::io, "{} port {}: {}", target.host, target.port, ::gai_strerror(failed));
    for (const addrinfo* a = found; a != nullptr && fd_ < 0; a = a->ai_next) {
      fd_ = ::socket(a->ai_family, a->ai_socktype, a->ai_protocol);
      if (fd_ < 0 || ::connect(fd_, a->ai_addr, a->ai_addrlen) == 0) continue;
      ::close(fd_);
      fd_ = -1;
    }
    const int error = errno;
    ::freeaddrinfo(found);
    if (fd_ < 0)
      fail(ErrorCode::io, "{} port {} cannot be reached: {}", target.host, target.port, std::strerror(error));
    const int on = 1;
    ::setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  }
  ~Connection() { ::close(fd_); }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  void send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t n = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) fail(ErrorCode::io, "sending a request failed: {}", std::strerror(errno));
      bytes.remove_prefix(static_cast<size_t>(n));
    }
  }
  // Appends what has come; false at the end.
  bool receive(std::string& to) {
    char bytes[16384];
    ssize_t n = 0;
    while ((n = ::recv(fd_, bytes, sizeof(bytes), 0)) < 0 && errno == EINTR) {
    }
    if (n < 0) fail(ErrorCode::io, "reading an answer failed: {}", std::strerror(errno));
    to.append(bytes, static_cast<size_t>(n));
    return n > 0;
  }

 private:
  int fd_ = -1;
};

std::string head(const HttpTarget& target, std::string_view method, const std::string& path) {
  std::string text = fmt::format("{} {} HTTP/1.0\r\nHost: {}:{}\r\n", method, path, target.host, target.port);
  if (!target.api_key.empty()) text += fmt::format("Authorization: Bearer {}\r\n", target.api_key);
  return text;
}

// Reads the head into `buffer`, which keeps the bytes after it. True: the status is 200.
bool receive_head(Connection& connection, std::string& buffer) {
  while (buffer.find("\r\n\r\n") == buffer.npos)
    if (!connection.receive(buffer)) fail(ErrorCode::io, "the server ended the connection without an answer");
  const bool ok = buffer.size() > 12 && std::string_view(buffer).substr(8, 5) == " 200 ";
  buffer.erase(0, buffer.find("\r\n\r\n") + 4);
  return ok;
}

std::string post_text(const HttpTarget& target, const std::string& path, const std::string& json) {
  return head(target, "POST", path) +
         fmt::format("Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{}", json.size(), json);
}

// All of the body; `ok` says whether it is an answer.
std::string receive_body(Connection& connection, std::string buffer, bool ok) {
  while (connection.receive(buffer)) {
  }
  if (!ok) fail(ErrorCode::invalid_argument, "the server refuses: {}", buffer);
  return buffer;
}

std::string ask(const HttpTarget& target, const std::string& request) {
  Connection connection(target);
  connection.send(request);
  std::string buffer;
  const bool ok = receive_head(connection, buffer);
  return receive_body(connection, std::move(buffer), ok);
}
}  // namespace

HttpTarget parse_base_url(const std::string& url) {
  constexpr std::string_view kScheme = "http://";
  check(url.starts_with(kScheme), "--base-url is {}; accepted: http://host:port", url);
  std::string rest = url.substr(kScheme.size());
  if (rest.ends_with('/')) rest.pop_back();
  if (rest.ends_with("/v1")) rest.resize(rest.size() - 3);
  const size_t colon = rest.rfind(':');
  check(rest.find('/') == rest.npos && colon != 0 && colon + 1 != rest.size(),
        "--base-url is {}; accepted: http://host:port", url);
  HttpTarget target;
  target.host = rest.substr(0, colon);
  target.port = colon == rest.npos ? "80" : rest.substr(colon + 1);
  int port = 0;
  const auto [end, error] = std::from_chars(target.port.data(), target.port.data() + target.port.size(), port);
  check(error == std::errc() && end == target.port.data() + target.port.size() && port >= 1 && port <= 65535,
        "--base-url is {}; accepted: a port of 1 to 65535", url);
  return target;
}

std::string http_get(const HttpTarget& target, const std::string& path) {
  return ask(target, head(target, "GET", path) + "\r\n");
}

std::string http_post(const HttpTarget& target, const std::string& path, const std::string& json) {
  return ask(target, post_text(target, path, json));
}

void http_post_stream(const HttpTarget& target, const std::string& path, const std::string& json,
                      const std::function<void(std::string_view)>& on_event) {
  Connection connection(target);
  connection.send(post_text(target, path, json));
  std::string buffer;
  if (!receive_head(connection, buffer)) receive_body(connection, std::move(buffer), false);
  constexpr std::string_view kData = "data: ";
  do {
    size_t begin = 0;
    for (size_t end = 0; (end = buffer.find("\n\n", begin)) != buffer.npos; begin = end + 2) {
      const std::string_view event = std::string_view(buffer).substr(begin, end - begin);
      if (event.starts_with(kData)) on_event(event.substr(kData.size()));
    }
    buffer.erase(0, begin);
  } while (connection.receive(buffer));
}

}  // namespace sluice::apps
