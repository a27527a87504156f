// SPDX-License-Identifier: Apache-2.0
// An engine with the model that it runs: weights that other weights replace while requests are in it, and memory that
// is given back for a while. What a trainer on the same machine needs.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "device/context.h"
#include "engine/async_engine.h"
#include "engine/sent_weights.h"
#include "model/models.h"
#include "text/tokenizer.h"

namespace sluice::engine {

enum class PauseMode : uint8_t { abort, retract, in_place };

struct MemoryTags {
  bool weights = false, kv_cache = false;

  bool any() const { return weights || kv_cache; }
};

// All calls that replace weights: the new ones are complete before the old ones go, which stay if anything throws.
// What runs is cancelled, unless generation is paused and `abort` false: then it goes on with the new weights. The
// prefix cache is flushed. `in_place` is called on the engine's thread between the last step with the old weights and
// the first with the new ones.
struct Replacement {
  bool abort = false;
  std::function<void()> in_place = [] {};
};

// Any thread may call anything.
class LiveEngine {
 public:
  // `tokenizer` (null: tokens only) must live longer. `model` was loaded with `loaded`. Throws as Engine's constructor.
  LiveEngine(const Context& ctx, model::LiveModel model, model::LoadOptions loaded, const text::Tokenizer* tokenizer,
             const EngineConfig& config);
  ~LiveEngine();

  // For calls that LiveEngine does not have. Its submit() also takes requests that LiveEngine's refuses.
  AsyncEngine& async() { return *async_; }
  const AsyncEngine& async() const { return *async_; }
  int64_t cache_bytes() const { return cache_bytes_; }

  // As AsyncEngine's; busy while memory is released.
  RequestId submit(Request request, Sink sink);
  std::vector<RequestId> submit(std::vector<Request> requests, std::vector<Sink> sinks);

  // No step is run until resume(); requests that come meanwhile wait. What runs is ended (abort), gives its cache back
  // and is computed anew afterwards (retract), or stays as it is (in_place).
  void pause(PauseMode mode);
  void resume();
  bool paused() const;

  // By the weights of another checkpoint of the same model. `options` is called on the engine's thread. Throws as
  // loading does, and invalid_argument for another model.
  void reload(const std::function<model::LoadOptions()>& options, const Replacement& how);
  // By single tensors, as the checkpoint names and stores them; model::update_live_model() says what it throws. Between
  // begin_update() and end_update() tensors are only kept; end_update() puts all of them in place at once, and throws
  // invalid_argument where there are none. reload() and release_memory() drop them, which ends the update.
  //
  // Dummy weights run until every tensor that the model needs has come, in any number of calls: the last of them builds
  // the model as from a folder with all that came. If that throws, or end_update() because one is missing, what came
  // stays. The dummies go before the model is built, unless answers are being worked on. Until then any name may come;
  // then tensors that the model does not use are left out of weights(), and names that it does not know are refused.
  void update(const NamedTensors& tensors, const Replacement& how);
  void begin_update();
  void end_update(const Replacement& how);
  // Throws what update() throws for names, types and shapes. Reads no byte of the tensors.
  void check_update(const NamedTensors& tensors) const;
  // Of an engine that was loaded with dummy weights, and has not been given a folder since: how much has come.
  std::optional<SentTensors> sent() const;
  // The tensors that the running weights were made of. Those that wait for end_update() are not among them.
  io::Checkpoint weights() const;

  // Gives memory back; no tags: does nothing. Throws busy while anything runs. Until all of it is resumed, and every
  // tensor that update() had brought has been brought again, requests are refused (busy). Dummies are made again, with
  // nothing of what had come for a model that was not complete.
  void release_memory(MemoryTags tags);
  void resume_memory(MemoryTags tags);

 private:
  void check_available() const;
  void put_in_place(Engine& engine, model::LiveModel next, const Replacement& how);
  bool apply(Engine& engine, const NamedTensors& tensors, const Replacement& how);
  void replace_dummies(Engine& engine, const SentWeights& sent, const Replacement& how);
  bool extend(Engine& engine, const NamedTensors& tensors, const Replacement& how);
  void drop_update(std::string_view how);
  bool has_dummies() const { return sent_ && live_.source.bytes() == 0; }
  void run_update(const std::function<void(Engine&)>& job);
  void set_released(bool weights);
  void set_sent(std::optional<SentWeights> sent);
  std::optional<SentWeights> nothing_sent(const io::Checkpoint& configs);
  void let_go_if_complete();

  Context ctx_;
  // Of the engine's thread.
  model::LoadOptions options_;
  model::LiveModel live_;
  bool updating_ = false;     // between begin_update() and end_update()
  bool came_ = false;         // a tensor, since begin_update()
  std::string_view dropped_;  // how the last update ended before end_update(), for its sentence; else ""
  NamedTensors pending_;      // of an update that has begun

  mutable std::mutex mutex_;  // of what other threads read too
  io::Checkpoint source_;     // live_.source
  MemoryTags released_;
  std::set<std::string> awaited_;    // tensors that were lost when the weights were released
  std::optional<SentWeights> sent_;  // in place of dummies or on the way there; nothing: the weights are a folder's

  int64_t cache_bytes_ = 0;
  std::unique_ptr<AsyncEngine> async_;
};

}  // namespace sluice::engine
