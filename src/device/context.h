// SPDX-License-Identifier: Apache-2.0
// What a computation may use, passed down and never global.
#pragma once

#include <functional>
#include <string_view>

#include "base/thread_pool.h"
#include "device/device.h"

namespace sluice {

enum class LogLevel { debug, info, warning };

// Long work reports here: what it does, how far it is. The apps draw a bar or print lines.
struct Progress {
  std::string_view what;  // "loading", "quantizing"
  int64_t done = 0, total = 0;
  std::string_view unit;  // "B", "tokens"
};

struct Context {
  ThreadPool& pool;  // for work on the host
  std::function<void(LogLevel, std::string_view)> log = [](LogLevel, std::string_view) {};
  std::function<void(const Progress&)> progress = [](const Progress&) {};
  Queue& queue = host_queue();  // where work is enqueued

  Device& device() const { return queue.device(); }
};

}  // namespace sluice
