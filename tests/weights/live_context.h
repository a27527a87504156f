// SPDX-License-Identifier: Apache-2.0
// A context that records its log lines and progress.
#pragma once

#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "device/context.h"

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
