// SPDX-License-Identifier: Apache-2.0
#include "moe/backends.h"

#include "moe/backend_cpu.h"
#include "moe/backend_reference.h"
#include "moe/backend_sm90.h"

namespace sluice::moe {

const std::vector<std::unique_ptr<Backend>>& backends() {
  static const auto list = [] {
    std::vector<std::unique_ptr<Backend>> all;
    all.push_back(make_sm90_backend());
    all.push_back(make_cpu_backend());
    all.push_back(make_reference_backend());
    return all;
  }();
  return list;
}

}  // namespace sluice::moe
