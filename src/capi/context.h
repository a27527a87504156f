// SPDX-License-Identifier: Apache-2.0
// What sluice_context points to. Layers and models share it, so destroying the handle early is harmless.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string_view>
#include <thread>

#include "base/error.h"
#include "device/context.h"
#include "sluice/c.h"

namespace sluice::capi {

class SharedContext {
 public:
  explicit SharedContext(int threads);

  // Runs body(Context&) alone: the pool takes one caller at a time. Throws invalid_argument when this thread is inside
  // a body already, which is a callback (on_token, log, progress) that calls back: waiting would never end.
  template <class Body>
  void use(Body&& body) {
    check(user_ != std::this_thread::get_id(),
          "a callback called a function that needs the context of the call it is in; accepted inside of callbacks: "
          "functions that run nothing, such as encode and decode");
    const std::lock_guard lock(mutex_);
    const User user(user_);
    body(context_);
  }

  // For objects that keep the context and run later, always inside use().
  Context& context() { return context_; }

 private:
  // A thread's id is written to the mark by that thread alone, so it can look for its own id without the mutex.
  struct User {
    explicit User(std::atomic<std::thread::id>& mark) : mark_(mark) { mark_ = std::this_thread::get_id(); }
    ~User() { mark_ = std::thread::id(); }
    std::atomic<std::thread::id>& mark_;
  };

  std::mutex mutex_;
  std::atomic<std::thread::id> user_;
  ThreadPool pool_;
  Context context_;
};

// Context's functions that call a caller's, or nothing for NULL.
std::function<void(LogLevel, std::string_view)> log_callback(sluice_log_fn log, void* user);
std::function<void(const Progress&)> progress_callback(sluice_progress_fn progress, void* user);

}  // namespace sluice::capi

struct sluice_context {
  std::shared_ptr<sluice::capi::SharedContext> shared;
};
