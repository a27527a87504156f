// SPDX-License-Identifier: Apache-2.0
// What sluice_engine points to.
#pragma once

#include <atomic>
#include <memory>

#include "device/cuda.h"
#include "engine/live_engine.h"
#include "grammar/compiler.h"
#include "sluice/c.h"
#include "text/special_guard.h"

namespace sluice::capi {

// The engine's own pool and queue; nobody else runs anything on them.
struct Machine {
  explicit Machine(const sluice_engine_options& options);
  Context context(const sluice_engine_options& options);

  ThreadPool pool;
  std::unique_ptr<Device> device;  // nothing: the CPU
  std::unique_ptr<Queue> queue;
};

// Everything that an engine's thread uses, so that streams may outlive the handle.
struct Running {
  Running(const char* folder, const sluice_engine_options& options);

  // The options of every call that replaces weights; each such call counts in weight_updates.
  engine::Replacement replacement(bool abort) {
    return {.abort = abort, .in_place = [this] { ++weight_updates; }};
  }

  const model::LoadOptions options;
  Machine machine;
  Context ctx;
  const text::Tokenizer tokenizer;
  const text::SpecialGuard special;
  model::ModelInfo info;
  std::unique_ptr<grammar::GrammarCompiler> grammars;
  std::atomic<int64_t> weight_updates = 0;
  std::unique_ptr<engine::LiveEngine> live;  // the last: it uses what is above
};

}  // namespace sluice::capi

struct sluice_engine {
  std::shared_ptr<sluice::capi::Running> running;
  ~sluice_engine() { running->live->async().stop(); }
};
