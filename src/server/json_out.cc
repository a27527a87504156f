// SPDX-License-Identifier: Apache-2.0
#include "server/json_out.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

namespace sluice::server {

std::string json_text(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string json_number(double value) { return std::isfinite(value) ? fmt::format("{}", value) : "null"; }

}  // namespace sluice::server
