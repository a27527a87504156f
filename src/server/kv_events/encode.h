// SPDX-License-Identifier: Apache-2.0
// A batch of cache events in msgpack, as vLLM and SGLang publish it: [seconds since 1970, [event...], rank].
// nlohmann-json, which io and server use already, writes msgpack too, so no library of its own is needed for it.
#pragma once

#include <span>
#include <string>

#include "engine/cache_events.h"
#include "server/kv_events/config.h"

namespace sluice::server {

std::string encode_batch(double time, std::span<const engine::CacheEvent> events, KvEventsConfig::Format format);

}  // namespace sluice::server
