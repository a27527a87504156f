// SPDX-License-Identifier: Apache-2.0
// THE LIST of backends, best first. A new one adds its files and two lines in backends.cc (docs/adding.md).
#pragma once

#include <memory>
#include <vector>

#include "moe/backend.h"

namespace sluice::moe {

// Made once, never changed. What a backend cannot do on this machine it says in supports().
const std::vector<std::unique_ptr<Backend>>& backends();

}  // namespace sluice::moe
