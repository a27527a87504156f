// SPDX-License-Identifier: Apache-2.0
// The names of tensors that a checkpoint was asked for, whether it has them or not.
#pragma once

#include <mutex>
#include <string>
#include <string_view>
#include <unordered_set>

namespace sluice::io {

// Thread-safe.
class AskedNames {
 public:
  void add(std::string_view name) {
    const std::lock_guard lock(mutex_);
    names_.emplace(name);
  }
  bool contains(std::string_view name) const {
    const std::lock_guard lock(mutex_);
    return names_.contains(std::string(name));
  }

 private:
  mutable std::mutex mutex_;
  std::unordered_set<std::string> names_;
};

}  // namespace sluice::io
