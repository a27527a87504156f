// SPDX-License-Identifier: Apache-2.0
#include "server/unknown_fields.h"

#include <fmt/format.h>

#include "server/api_error.h"

namespace sluice::server {

namespace {
constexpr size_t kMostNames = 256;  // a client that invents names must not fill the memory or the log
}

void UnknownFields::meet(const std::string& name, std::string_view reason) {
  if (!log_ && reason.empty())
    refuse(name, name + " is not a parameter that this server knows; leave it out", "unknown_parameter");
  if (!log_) refuse(name, fmt::format("{} is not supported: {}; leave it out", name, reason), "unsupported_parameter");
  {
    const std::lock_guard lock(mutex_);
    if (met_.size() >= kMostNames || !met_.insert(name).second) return;
  }
  log_(fmt::format("a request has the field {}, which this server does not know and ignores", name));
}

}  // namespace sluice::server
