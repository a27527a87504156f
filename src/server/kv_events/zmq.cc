// SPDX-License-Identifier: Apache-2.0
#include "server/kv_events/zmq.h"

#include <dlfcn.h>

#include <array>
#include <cstring>
#include <new>

#include "base/error.h"
#include "io/quote.h"

namespace sluice::server::zmq {

namespace {
void* open_library() {
  if (void* handle = ::dlopen("libzmq.so.5", RTLD_NOW | RTLD_LOCAL)) return handle;
  fail(ErrorCode::unsupported, "KV events need libzmq.so.5, which cannot be opened ({}); install libzmq5", ::dlerror());
}

template <class F>
void find(void* handle, const char* name, F& function) {
  function = reinterpret_cast<F>(::dlsym(handle, name));
  if (function == nullptr) fail(ErrorCode::unsupported, "libzmq.so.5 has no {}; accepted: libzmq 4.1 or later", name);
}
}  // namespace

Library::Library() : handle_(open_library()) {
  find(handle_, "zmq_ctx_new", ctx_new);
  find(handle_, "zmq_ctx_term", ctx_term);
  find(handle_, "zmq_socket", socket);
  find(handle_, "zmq_close", close);
  find(handle_, "zmq_setsockopt", setsockopt);
  find(handle_, "zmq_getsockopt", getsockopt);
  find(handle_, "zmq_bind", bind);
  find(handle_, "zmq_connect", connect);
  find(handle_, "zmq_poll", poll);
  find(handle_, "zmq_msg_init", msg_init);
  find(handle_, "zmq_msg_init_size", msg_init_size);
  find(handle_, "zmq_msg_data", msg_data);
  find(handle_, "zmq_msg_size", msg_size);
  find(handle_, "zmq_msg_copy", msg_copy);
  find(handle_, "zmq_msg_send", msg_send);
  find(handle_, "zmq_msg_recv", msg_recv);
  find(handle_, "zmq_msg_more", msg_more);
  find(handle_, "zmq_msg_close", msg_close);
  find(handle_, "zmq_strerror", strerror);
  find(handle_, "zmq_errno", error);
}
Library::~Library() { ::dlclose(handle_); }

Context::Context(const Library& zmq) : zmq_(zmq), context_(zmq.ctx_new()) {
  if (context_ == nullptr) fail(ErrorCode::io, "ZeroMQ cannot begin: {}", zmq.error_text());
}
Context::~Context() { zmq_.ctx_term(context_); }

Part::Part(const Library& zmq) : zmq_(&zmq) { zmq.msg_init(&part_); }
Part::Part(const Library& zmq, std::string_view bytes) : zmq_(&zmq) {
  if (zmq.msg_init_size(&part_, bytes.size()) != 0) throw std::bad_alloc();
  std::memcpy(zmq.msg_data(&part_), bytes.data(), bytes.size());
}
Part::Part(const Part& other) : Part(*other.zmq_) { zmq_->msg_copy(&part_, &other.part_); }
std::string_view Part::bytes() const { return {static_cast<const char*>(zmq_->msg_data(&part_)), size()}; }

Socket::Socket(const Library& zmq, const Context& context, int type)
    : zmq_(zmq), socket_(zmq.socket(context.get(), type)) {
  if (socket_ == nullptr) fail(ErrorCode::io, "ZeroMQ gives no socket: {}", zmq.error_text());
}

void Socket::set(int option, int value) { set(option, &value, sizeof(value)); }
void Socket::set(int option, int64_t value) { set(option, &value, sizeof(value)); }
void Socket::set(int option, const void* value, size_t size) {
  if (zmq_.setsockopt(socket_, option, value, size) != 0)
    fail(ErrorCode::internal, "ZeroMQ does not take option {}: {}", option, zmq_.error_text());
}

void Socket::bind(const std::string& endpoint) {
  check(zmq_.bind(socket_, endpoint.c_str()) == 0, "KV events: cannot listen at {}: {}", io::quote(endpoint),
        zmq_.error_text());
}

void Socket::connect(const std::string& endpoint) {
  check(zmq_.connect(socket_, endpoint.c_str()) == 0, "KV events: cannot connect to {}: {}", io::quote(endpoint),
        zmq_.error_text());
}

std::string Socket::last_endpoint() const {
  std::array<char, 512> text{};
  size_t size = text.size();
  if (zmq_.getsockopt(socket_, ZMQ_LAST_ENDPOINT, text.data(), &size) != 0) return "";
  return text.data();
}

bool Socket::send(const std::vector<Part>& parts) {
  for (size_t i = 0; i < parts.size(); ++i) {
    Part part(parts[i]);  // sending takes the part away
    const int more = i + 1 < parts.size() ? ZMQ_SNDMORE : 0;
    if (zmq_.msg_send(&part.part_, socket_, ZMQ_DONTWAIT | more) < 0) return false;
  }
  return true;
}

std::vector<Part> Socket::receive() {
  std::vector<Part> parts;
  for (bool more = true; more;) {
    Part part(zmq_);
    if (zmq_.msg_recv(&part.part_, socket_, ZMQ_DONTWAIT) < 0) break;
    more = zmq_.msg_more(&part.part_) != 0;
    constexpr size_t kMostParts = 8;  // no message that is answered has more
    if (parts.size() < kMostParts) parts.push_back(part);
  }
  return parts;
}

}  // namespace sluice::server::zmq
