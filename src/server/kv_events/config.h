// SPDX-License-Identifier: Apache-2.0
// How cache events are published: vLLM's and SGLang's keys with their defaults.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace sluice::server {

struct KvEventsConfig {
  // How an event is written. Programs that vLLM and SGLang published events to before the summer of 2026 know arrays
  // only.
  enum class Format { map, array };

  bool enabled = false;
  std::string endpoint = "tcp://*:5557";
  std::string replay_endpoint;  // "": there is none
  std::string topic;
  size_t buffer_steps = 10'000;     // batches that can be asked for again
  int hwm = 100'000;                // messages that wait for one slow subscriber; it misses further ones
  size_t max_queue_size = 100'000;  // batches that wait to be published
  Format format = Format::map;
};

// Throws invalid_argument naming the key, after `name`: what the caller's user calls the text.
KvEventsConfig parse_kv_events_config(std::string_view json, std::string_view name);

// Whether this server listens at the endpoint or calls it: as with vLLM and SGLang, it listens where the endpoint has a
// wildcard or "::", or is a file.
bool is_listened_at(std::string_view endpoint);

}  // namespace sluice::server
