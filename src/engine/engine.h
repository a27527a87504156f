// SPDX-License-Identifier: Apache-2.0
// Many requests through one model: schedule -> run -> sample -> publish, one step() at a time. One thread at a time;
// async_engine.h puts it on a thread of its own.
//
// With a model that is row_invariant (ModelInfo; on the CPU every model whose experts run there too, on a GPU, or with
// experts on one, those loaded with deterministic) a request's tokens depend on its prompt, its parameters and its seed
// alone: not on what else is in the batch, on chunking, pre-emption, speculation or the prefix cache. (The model's rows
// then do not depend on each other, bit for bit, and the uniform number that chooses a token depends on seed and
// position only.) With another model the order of float32 sums depends on the number of rows, which can change the
// choice between two nearly equal logits; such a model takes no speculative_steps.
#pragma once

#include <memory>

#include "device/context.h"
#include "engine/cache_events.h"
#include "engine/engine_config.h"
#include "engine/metrics.h"
#include "engine/request.h"
#include "engine/step_observer.h"
#include "text/tokenizer.h"

namespace sluice::engine {

class Engine {
 public:
  // `model` and `tokenizer` (null: tokens only, no text and no stop strings) must live longer. Reserves the cache.
  // Throws invalid_argument naming the field, unsupported for speculative_steps without a draft head or with a model
  // that is not row_invariant, out_of_memory.
  Engine(Context ctx, const model::Model& model, const text::Tokenizer* tokenizer, const EngineConfig& config);
  ~Engine();

  // Queues a request. Throws invalid_argument (validate()), and busy when max_queued choices wait already. id: the
  // caller's own, not in use; 0: the next free one. `admitted`: the caller has looked at max_queued itself.
  RequestId add(Request request, Sink sink, RequestId id = 0, bool admitted = false);
  // Ends a request: its blocks and slots are free on return, and its sink gets the last events. False: no such request,
  // or it has finished.
  bool cancel(RequestId id);
  void cancel_all();
  // One forward pass of the model over what the scheduler chose. False: nothing to do. An error of one sequence
  // ends that one with FinishReason::error; an error of the pass ends all sequences in it. With EngineConfig::overlap
  // the next pass may be under way on return; whatever changes sequences, cache or model ends it first.
  bool step();
  bool idle() const;  // no request is left
  // Ends the requests that have passed a time limit of theirs, as every step() does: for whoever runs no steps.
  void expire();
  bool timed() const;  // whether an open request has a time limit
  // What the device says since an error that it does not recover from (a kernel fault, a device that is gone): every
  // step ends with an error from then on. Empty: nothing.
  const std::string& fault() const;
  int64_t queued() const;  // choices that wait for their first step

  // Forgets every cached prefix that nobody is using now.
  void flush_cache();
  // Tells `sink` of every change of the prefix cache from now on. Before the first request. Throws unsupported when
  // there is no prefix cache.
  void publish_cache_events(CacheEventSink sink);
  // Every running sequence gives its cache back and waits again; it is computed anew when it is taken up.
  void retract_all();
  // Another model of the same cache shape and vocabulary: reloaded weights. The cache is flushed.
  enum class InFlight : uint8_t {
    cancel,
    keep,  // what runs goes on with the new weights; keys, values and states of its tokens so far stay the old ones'
  };
  void replace_model(const model::Model& model, InFlight requests = InFlight::cancel);
  // Lets go of the model and of the cache's memory, which the next replace_model() and the next step() bring back.
  // Nothing may be running (metrics().running), and step() must not be called without a model. Throws busy when
  // something runs.
  void drop_model();
  bool has_model() const;
  void release_cache();
  void restore_cache();  // before the next step(), which would do it; throws out_of_memory

  // Counts the experts that are chosen from now on; counts begin at 0 with every start. Throws unsupported for a model
  // without experts or on another device than the host.
  void record_experts(bool on);
  bool recording_experts() const;
  const ExpertCounts& expert_counts() const;
  // `trace` is called on the engine's thread after each of the next `steps` steps that run a model.
  void trace_steps(int64_t steps, std::function<void(const StepTrace&)> trace);

  const EngineConfig& config() const;  // with what was 0 filled in
  const model::ModelInfo& model_info() const;
  Limits limits() const;
  Metrics metrics() const;
  // `then` is called before a sink hears of the first tokens or of the end of an answer; metrics() counts them already.
  void on_change(std::function<void()> then);
  int64_t cache_bytes() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice::engine
