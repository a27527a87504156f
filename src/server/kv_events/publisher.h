// SPDX-License-Identifier: Apache-2.0
// Publishes cache events over ZeroMQ: a message [topic, sequence number, batch] for each, and the last ones again for
// subscribers that ask. A thread of its own does it; a slow or absent subscriber delays nobody.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/cache_events.h"
#include "server/kv_events/config.h"

namespace sluice::server {

class KvEventPublisher {
 public:
  // Binds or connects. Throws unsupported in a program that was built without it and where libzmq is not installed,
  // invalid_argument for an endpoint that cannot be used.
  KvEventPublisher(const KvEventsConfig& config, std::function<void(std::string_view)> log);
  ~KvEventPublisher();  // what was pushed is sent before

  void push(std::vector<engine::CacheEvent> events);

  // As they are bound: with the port that the system chose for port 0. "": there is none.
  std::string endpoint() const;
  std::string replay_endpoint() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice::server
