// SPDX-License-Identifier: Apache-2.0
// One request and its answer. An endpoint either replies once, or begins a stream, writes to it and ends it; a stream
// of which nothing has been sent may still become a reply.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "server/http/message.h"

namespace sluice::server::http {

// All functions may be called from any thread and return at once; what they do happens on the server's thread, in the
// order of the calls. After the client has gone they have no effect, but for post(). An exchange that is destroyed
// unanswered answers 500, so that no client waits for ever.
class Exchange {
 public:
  virtual ~Exchange() = default;
  virtual const Request& request() const = 0;
  virtual std::string_view request_id() const { return {}; }  // in the log and in the answer's X-Request-Id

  virtual void reply(Response response) = 0;

  // A head (its body is not used), then chunks, in order, and the end. The head is sent with the first chunk: until
  // then a router may ask another server. While nothing is written for a while, ": keep-alive" comments are sent in
  // between, as server-sent events allow; the first takes the head along.
  virtual void begin_stream(Response head) = 0;
  virtual void write(std::string bytes) = 0;
  virtual void end() = 0;
  // Ends a stream that fails: with `reply`, whose status clients and routers act on, while nothing of the stream has
  // been sent, else with `last`, whose bytes are those of a write().
  virtual void fail(Response reply, std::string last) = 0;

  // Called at most once, on the server's thread, when the client has gone before the answer was complete.
  virtual void on_gone(std::function<void()> callback) = 0;
  // Runs `job` on the server's thread, also when the client has gone; it must be short.
  virtual void post(std::function<void()> job) = 0;
};

}  // namespace sluice::server::http
