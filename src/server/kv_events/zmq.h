// SPDX-License-Identifier: Apache-2.0
// What the publisher uses of libzmq, opened when it is asked for: the program then runs where libzmq is not installed.
// (Linking its archive would bring Debian's pgm, norm, gssapi and sodium into every program.)
#pragma once

#include <zmq.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace sluice::server::zmq {

class Library {
 public:
  Library();  // throws unsupported
  ~Library();
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  decltype(&::zmq_ctx_new) ctx_new;
  decltype(&::zmq_ctx_term) ctx_term;
  decltype(&::zmq_socket) socket;
  decltype(&::zmq_close) close;
  decltype(&::zmq_setsockopt) setsockopt;
  decltype(&::zmq_getsockopt) getsockopt;
  decltype(&::zmq_bind) bind;
  decltype(&::zmq_connect) connect;
  decltype(&::zmq_poll) poll;
  decltype(&::zmq_msg_init) msg_init;
  decltype(&::zmq_msg_init_size) msg_init_size;
  decltype(&::zmq_msg_data) msg_data;
  decltype(&::zmq_msg_size) msg_size;
  decltype(&::zmq_msg_copy) msg_copy;
  decltype(&::zmq_msg_send) msg_send;
  decltype(&::zmq_msg_recv) msg_recv;
  decltype(&::zmq_msg_more) msg_more;
  decltype(&::zmq_msg_close) msg_close;
  decltype(&::zmq_strerror) strerror;
  decltype(&::zmq_errno) error;

  std::string error_text() const { return strerror(error()); }

 private:
  void* handle_;
};

class Context {
 public:
  explicit Context(const Library& zmq);
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;
  void* get() const { return context_; }

 private:
  const Library& zmq_;
  void* context_;
};

// One part of a message. Copies share the bytes.
class Part {
 public:
  explicit Part(const Library& zmq);
  Part(const Library& zmq, std::string_view bytes);
  Part(const Part& other);
  Part(Part&& other) noexcept : Part(other) {}
  Part& operator=(const Part&) = delete;
  ~Part() { zmq_->msg_close(&part_); }
  std::string_view bytes() const;
  size_t size() const { return zmq_->msg_size(&part_); }

 private:
  friend class Socket;
  const Library* zmq_;
  mutable zmq_msg_t part_;  // libzmq's functions take no const
};

class Socket {
 public:
  Socket(const Library& zmq, const Context& context, int type);
  ~Socket() { zmq_.close(socket_); }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  void* get() const { return socket_; }

  void set(int option, int value);
  void set(int option, int64_t value);
  // Both throw invalid_argument with the endpoint and the reason.
  void bind(const std::string& endpoint);
  void connect(const std::string& endpoint);
  std::string last_endpoint() const;
  // Never wait. send: false when nothing of the message was taken.
  bool send(const std::vector<Part>& parts);
  std::vector<Part> receive();  // none: there is no message

 private:
  void set(int option, const void* value, size_t size);

  const Library& zmq_;
  void* socket_;
};

}  // namespace sluice::server::zmq
