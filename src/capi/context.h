// SPDX-License-Identifier: Apache-2.0
// What stands behind sluice_context. Layers and models share it, so destroying the handle early is harmless.
#pragma once

#include <memory>
#include <mutex>

#include "base/context.h"
#include "sluice/c.h"

namespace sluice::capi {

class SharedContext {
 public:
  explicit SharedContext(int threads);

  // Runs body(Context&) alone: the pool takes one caller at a time.
  template <class Body>
  void use(Body&& body) {
    std::lock_guard lock(mutex_);
    body(context_);
  }

 private:
  std::mutex mutex_;
  ThreadPool pool_;
  Context context_;
};

}  // namespace sluice::capi

struct sluice_context {
  std::shared_ptr<sluice::capi::SharedContext> shared;
};
