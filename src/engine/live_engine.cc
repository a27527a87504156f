// SPDX-License-Identifier: Apache-2.0
#include "engine/live_engine.h"

#include <malloc.h>

namespace sluice::engine {

LiveEngine::LiveEngine(const Context& ctx, model::LiveModel model, model::LoadOptions loaded,
                       const text::Tokenizer* tokenizer, const EngineConfig& config)
    : ctx_(ctx), options_(std::move(loaded)), live_(std::move(model)), source_(live_.source) {
  auto engine = std::make_unique<Engine>(ctx, *live_.model, tokenizer, config);
  cache_bytes_ = engine->cache_bytes();
  async_ = std::make_unique<AsyncEngine>(std::move(engine));
}

LiveEngine::~LiveEngine() { async_->stop(); }

RequestId LiveEngine::submit(Request request, Sink sink) {
  check_available();
  return async_->submit(std::move(request), std::move(sink));
}
std::vector<RequestId> LiveEngine::submit(std::vector<Request> requests, std::vector<Sink> sinks) {
  check_available();
  return async_->submit(std::move(requests), std::move(sinks));
}

void LiveEngine::pause(PauseMode mode) {
  async_->hold(AsyncEngine::Hold::paused);
  if (mode == PauseMode::in_place) return;
  async_->run([mode](Engine& e) { mode == PauseMode::abort ? e.cancel_all() : e.retract_all(); });
}
void LiveEngine::resume() { async_->release(AsyncEngine::Hold::paused); }
bool LiveEngine::paused() const { return async_->held(AsyncEngine::Hold::paused); }

// The loading below is on the engine's thread: the thread pool serves one caller at a time, and the model that runs
// needs it too. The old weights are given up only when the new ones are complete.
void LiveEngine::put_in_place(Engine& engine, model::LiveModel next, const Replacement& how) {
  const bool keep = paused() && !how.abort;
  engine.replace_model(*next.model, keep ? Engine::InFlight::keep : Engine::InFlight::cancel);
  std::swap(live_, next);
  how.in_place();
  {
    const std::lock_guard lock(mutex_);
    source_ = live_.source;
  }
  next = {};
  // The old weights' pages would stay with the process, up to a model's worth in holes: glibc keeps freed blocks of
  // up to 32 MB.
  ::malloc_trim(0);
}

void LiveEngine::reload(const std::function<model::LoadOptions()>& options_of, const Replacement& how) {
  async_->run([&](Engine& e) {
    model::LoadOptions options = options_of();
    model::LiveModel next = model::load_live_model(ctx_, options);
    put_in_place(e, std::move(next), how);
    options_ = std::move(options);
    pending_.clear();
    const std::lock_guard lock(mutex_);
    awaited_.clear();
    released_.weights = false;
    let_go_if_complete();
  });
}

void LiveEngine::update(const NamedTensors& tensors, const Replacement& how) {
  async_->run([&](Engine& e) {
    if (!e.has_model()) fail(ErrorCode::busy, "the weights are released; resume_memory_occupation brings them back");
    if (!updating_) return apply(e, tensors, how);
    const io::Checkpoint checked = live_.source.updated(tensors);  // throws
    for (const auto& given : tensors) {
      std::erase_if(pending_, [&](const auto& earlier) { return earlier.first == given.first; });
      pending_.push_back(given);
    }
  });
}

void LiveEngine::begin_update() {
  async_->run([&](Engine&) {
    updating_ = true;
    pending_.clear();
  });
}

void LiveEngine::end_update(const Replacement& how) {
  async_->run([&](Engine& e) {
    check(updating_, "no update has begun; begin_weight_update begins one");
    updating_ = false;
    const NamedTensors tensors = std::exchange(pending_, {});
    if (!tensors.empty()) apply(e, tensors, how);
  });
}

void LiveEngine::apply(Engine& engine, const NamedTensors& tensors, const Replacement& how) {
  put_in_place(engine, model::update_live_model(ctx_, options_, live_, tensors), how);
  const std::lock_guard lock(mutex_);
  for (const auto& [name, tensor] : tensors) awaited_.erase(name);
  let_go_if_complete();
}

io::Checkpoint LiveEngine::weights() const {
  const std::lock_guard lock(mutex_);
  return source_;
}

void LiveEngine::check_available() const {
  const std::lock_guard lock(mutex_);
  if (released_.weights || released_.kv_cache)
    fail(ErrorCode::busy, "the memory of {} is released; resume_memory_occupation brings it back",
         released_.weights && released_.kv_cache ? "weights and kv_cache"
         : released_.weights                     ? "weights"
                                                 : "kv_cache");
  if (!awaited_.empty())
    fail(ErrorCode::busy,
         "{} tensors that were updated before the weights were released have not come again, the first of them {}",
         awaited_.size(), *awaited_.begin());
}

// With the mutex.
void LiveEngine::let_go_if_complete() {
  if (!released_.weights && !released_.kv_cache && awaited_.empty()) async_->release(AsyncEngine::Hold::released);
}

void LiveEngine::release_memory(MemoryTags tags) {
  // First of all, so that no request begins in between; taken back if this fails.
  async_->hold(AsyncEngine::Hold::released);
  try {
    async_->run([&](Engine& e) {
      check(!tags.weights || !options_.dummy,
            "the weights are dummies (--load-format dummy) and cannot be read again; accepted: kv_cache alone");
      if (tags.kv_cache) {
        e.release_cache();
        const std::lock_guard lock(mutex_);
        released_.kv_cache = true;
      }
      if (!tags.weights || !e.has_model()) return;
      e.drop_model();
      const std::vector<std::string> lost = live_.source.updated_names();
      live_ = {nullptr, live_.source.without_updates(), nullptr};
      pending_.clear();
      ::malloc_trim(0);
      const std::lock_guard lock(mutex_);
      source_ = live_.source;
      awaited_.insert(lost.begin(), lost.end());
      released_.weights = true;
    });
  } catch (...) {
    const std::lock_guard lock(mutex_);
    let_go_if_complete();
    throw;
  }
}

void LiveEngine::resume_memory(MemoryTags tags) {
  async_->run([&](Engine& e) {
    if (tags.weights && !e.has_model()) {
      model::LiveModel next = model::load_live_model(ctx_, options_);
      e.replace_model(*next.model, Engine::InFlight::keep);
      live_ = std::move(next);
      const std::lock_guard lock(mutex_);
      source_ = live_.source;
      released_.weights = false;
    }
    if (tags.kv_cache) e.restore_cache();
    const std::lock_guard lock(mutex_);
    if (tags.kv_cache) released_.kv_cache = false;
    let_go_if_complete();
  });
}

}  // namespace sluice::engine
