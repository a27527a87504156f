// SPDX-License-Identifier: Apache-2.0
#include "server/kv_events/config.h"

#include "io/quote.h"
#include "server/api_error.h"
#include "server/fields.h"

namespace sluice::server {

namespace {
std::string endpoint(Fields& fields, std::string_view key, std::string_view otherwise) {
  std::string value = fields.string(key).value_or(std::string(otherwise));
  if (value.empty() || value.starts_with("tcp://") || value.starts_with("ipc://")) return value;
  fields.refuse(key, fmt::format("is {}; accepted: tcp://*:PORT, tcp://HOST:PORT, ipc://FILE", io::quote(value)));
}

KvEventsConfig read(const io::JsonValue& object, std::string_view name) {
  Fields fields(object, fmt::format("{}: ", name));
  UnknownFields none;
  KvEventsConfig c;
  const auto enable = fields.boolean("enable_kv_cache_events");
  const std::string publisher = fields.string("publisher").value_or(enable.value_or(false) ? "zmq" : "null");
  if (publisher != "zmq" && publisher != "null")
    fields.refuse("publisher", fmt::format("is {}; accepted: zmq, null", io::quote(publisher)));
  c.enabled = publisher == "zmq" && enable.value_or(true);
  c.endpoint = endpoint(fields, "endpoint", c.endpoint);
  if (c.endpoint.empty()) fields.refuse("endpoint", "is empty; accepted: tcp://*:PORT, tcp://HOST:PORT, ipc://FILE");
  c.replay_endpoint = endpoint(fields, "replay_endpoint", "");
  c.topic = fields.string("topic").value_or("");
  constexpr int64_t kMany = 10'000'000;
  c.buffer_steps = static_cast<size_t>(fields.integer("buffer_steps", 0, kMany).value_or(c.buffer_steps));
  c.hwm = static_cast<int>(fields.integer("hwm", 1, kMany).value_or(c.hwm));
  c.max_queue_size = static_cast<size_t>(fields.integer("max_queue_size", 1, kMany).value_or(c.max_queue_size));
  const std::string format = fields.string("event_format").value_or("map");
  if (format != "map" && format != "array")
    fields.refuse("event_format", fmt::format("is {}; accepted: map, array", io::quote(format)));
  c.format = format == "map" ? KvEventsConfig::Format::map : KvEventsConfig::Format::array;
  fields.finish(none);
  return c;
}
}  // namespace

KvEventsConfig parse_kv_events_config(std::string_view json, std::string_view name) {
  try {
    const io::JsonValue value = io::parse_json_value(json, name);
    check(value.as<io::JsonValue::Object>() != nullptr, "{} is {}; accepted: a JSON object", name, io::describe(value));
    return read(value, name);
  } catch (const ApiError& error) {
    throw Error(ErrorCode::invalid_argument, error.what());
  } catch (const Error& error) {  // bad_file: it is no file
    throw Error(ErrorCode::invalid_argument, error.what());
  }
}

bool is_listened_at(std::string_view endpoint) {
  return endpoint.starts_with("ipc://") || endpoint.find('*') != endpoint.npos || endpoint.find("::") != endpoint.npos;
}

}  // namespace sluice::server
