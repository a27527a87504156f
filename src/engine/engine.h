// SPDX-License-Identifier: Apache-2.0
// Many requests through one model: schedule -> run -> sample -> publish, one step() at a time. One thread at a time;
// async_engine.h puts it on a thread of its own.
//
// A request's tokens depend on its prompt, its parameters and its seed alone: not on what else is in the batch, on
// chunking, pre-emption, speculation or the prefix cache. (The model's rows do not depend on each other, bit for bit,
// and a coin depends on seed and position.)
#pragma once

#include <memory>

#include "base/context.h"
#include "engine/engine_config.h"
#include "engine/metrics.h"
#include "engine/request.h"
#include "text/tokenizer.h"

namespace sluice::engine {

class Engine {
 public:
  // `model` and `tokenizer` (null: tokens only, no text and no stop strings) must live longer. Reserves the cache.
  // Throws invalid_argument naming the field, unsupported for speculative_steps without a draft head, out_of_memory.
  Engine(Context ctx, const model::Model& model, const text::Tokenizer* tokenizer, const EngineConfig& config);
  ~Engine();

  // Queues a request. Throws invalid_argument (validate()), and busy when max_queued choices wait already. id: the
  // caller's own, not in use; 0: the next free one.
  RequestId add(Request request, Sink sink, RequestId id = 0);
  // Ends a request: its blocks and slots are free on return, and its sink is told. False: no such request (any more).
  bool cancel(RequestId id);
  void cancel_all();
  // One pass of the model over what the scheduler chose. False: nothing to do. What goes wrong with one sequence ends
  // that one with FinishReason::error; what goes wrong with a pass ends the sequences in it.
  bool step();
  bool idle() const;       // no request is left
  int64_t queued() const;  // choices that wait for their first step

  // Forgets every cached prefix that nobody is using now.
  void flush_cache();
  // Another model of the same cache shape and vocabulary: reloaded weights. Cancels what runs, flushes the cache.
  void replace_model(const model::Model& model);

  const EngineConfig& config() const;  // with what was 0 filled in
  const model::ModelInfo& model_info() const;
  Limits limits() const;
  Metrics metrics() const;
  int64_t cache_bytes() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice::engine
