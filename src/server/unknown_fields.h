// SPDX-License-Identifier: Apache-2.0
// What becomes of a request's fields that this server does not know.
#pragma once

#include <functional>
#include <mutex>
#include <set>
#include <string>
#include <string_view>

namespace sluice::server {

class UnknownFields {
 public:
  UnknownFields() = default;  // refused
  // Passed over; each name is given to `log` once.
  explicit UnknownFields(std::function<void(std::string_view)> log) : log_(std::move(log)) {}

  // Throws ApiError 400 unless they are passed over. `reason`: refusal_reason() of a field that another server has;
  // empty: no server that is known here has it. Any thread may call it.
  void meet(const std::string& name, std::string_view reason);

 private:
  std::function<void(std::string_view)> log_;
  std::mutex mutex_;
  std::set<std::string> met_;
};

}  // namespace sluice::server
