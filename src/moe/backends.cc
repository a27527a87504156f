// SPDX-License-Identifier: Apache-2.0
#include "moe/backends.h"

#include "moe/backend_reference.h"

namespace sluice::moe {

const std::vector<std::unique_ptr<Backend>>& backends() {
  static const auto list = [] {
    std::vector<std::unique_ptr<Backend>> all;
    all.push_back(make_reference_backend());
    return all;
  }();
  return list;
}

}  // namespace sluice::moe
