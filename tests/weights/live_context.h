// SPDX-License-Identifier: Apache-2.0
// A context that keeps what it is told.
#pragma once

#include <string>
#include <vector>

#include "base/context.h"
#include "base/thread_pool.h"

namespace sluice::weights {

struct Live {
  ThreadPool pool{2};
  std::vector<std::string> warnings;
  std::vector<Progress> progress;
  Context ctx{pool,
              [this](LogLevel level, std::string_view text) {
                if (level == LogLevel::warning) warnings.emplace_back(text);
              },
              [this](const Progress& p) { progress.push_back(p); }};
};

}  // namespace sluice::weights
