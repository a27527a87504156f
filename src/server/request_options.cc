// SPDX-License-Identifier: Apache-2.0
#include "server/request_options.h"

#include <limits>

namespace sluice::server {

namespace {
constexpr size_t kMostSaltBytes = 1024;
constexpr double kMostSeconds = 1e6;

void read_priority(Fields& fields, const ServiceConfig& config, engine::Request& request) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  const int64_t priority = fields.integer("priority", -kMost, kMost).value_or(0);
  if (priority != 0 && !config.priority_scheduling)
    fields.refuse("priority",
                  fmt::format("is {}, and requests are served in order of arrival; accepted: 0, or start the server "
                              "with priority scheduling",
                              priority),
                  "unsupported_parameter");
  request.priority = config.low_priority_first ? -priority : priority;
}
}  // namespace

void read_request_options(Fields& fields, const ServiceConfig& config, engine::Request& request) {
  read_priority(fields, config, request);
  request.queue_timeout = fields.number("queue_timeout", {0, kMostSeconds, true}).value_or(config.queue_timeout);
  request.timeout = fields.number("timeout", {0, kMostSeconds, true}).value_or(config.request_timeout);
  const auto salt = fields.string("cache_salt"), extra = fields.string("extra_key");
  if (salt && extra && *salt != *extra) fields.refuse("extra_key", "and cache_salt differ; accepted: one of them");
  request.cache_salt = salt ? *salt : extra.value_or("");
  const char* key = salt ? "cache_salt" : "extra_key";
  if (request.cache_salt.size() > kMostSaltBytes)
    fields.refuse(key, fmt::format("has {} bytes; accepted: at most {}", request.cache_salt.size(), kMostSaltBytes));
  if (salt && salt->empty()) fields.refuse("cache_salt",
                                           "is empty; accepted: at least one byte");  // as vLLM
}

}  // namespace sluice::server
