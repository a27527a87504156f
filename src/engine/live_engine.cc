// SPDX-License-Identifier: Apache-2.0
#include "engine/live_engine.h"

#include <malloc.h>

#include "io/quote.h"

namespace sluice::engine {

LiveEngine::LiveEngine(const Context& ctx, model::LiveModel model, model::LoadOptions loaded,
                       const text::Tokenizer* tokenizer, const EngineConfig& config)
    : ctx_(ctx), options_(std::move(loaded)), live_(std::move(model)), source_(live_.source) {
  sent_ = nothing_sent(live_.source);
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
    drop_update(": what had come for the last one was dropped when a folder's weights took the place");
    {
      const std::lock_guard lock(mutex_);
      awaited_.clear();
      released_.weights = false;
      let_go_if_complete();
    }
    set_sent(nothing_sent(live_.source));
  });
}

// Of dummies, while no step begins: if they cannot be made again after an error, there is no model, as after a release.
void LiveEngine::run_update(const std::function<void(Engine&)>& job) {
  if (!sent() || weights().bytes() > 0) return async_->run(job);
  async_->hold(AsyncEngine::Hold::released);
  const auto let_go = [this] {
    const std::lock_guard lock(mutex_);
    let_go_if_complete();
  };
  try {
    async_->run(job);
  } catch (...) {
    let_go();
    throw;
  }
  let_go();
}

void LiveEngine::update(const NamedTensors& tensors, const Replacement& how) {
  run_update([&](Engine& e) {
    if (!e.has_model()) fail(ErrorCode::busy, "the weights are released; resuming their memory brings them back");
    if (has_dummies()) {
      set_sent(sent_->with(tensors));
      came_ = true;
      if (!updating_ && sent_->state().complete()) replace_dummies(e, *sent_, how);
      return;
    }
    if (!updating_) {
      apply(e, tensors, how);
      return;
    }
    check_update(tensors);
    came_ = true;
    for (const auto& given : tensors) {
      std::erase_if(pending_, [&](const auto& earlier) { return earlier.first == given.first; });
      pending_.push_back(given);
    }
  });
}

void LiveEngine::begin_update() {
  async_->run([&](Engine&) {
    check(!updating_, "an update has begun already; end it first");
    updating_ = true;
    came_ = false;
    dropped_ = "";
  });
}

// With the weights, so that end_update() does not take the old ones for what came. An update that nothing came for goes
// on.
void LiveEngine::drop_update(std::string_view how) {
  if (!updating_ || !came_) return;
  updating_ = false;
  dropped_ = how;
  pending_.clear();
}

void LiveEngine::end_update(const Replacement& how) {
  run_update([&](Engine& e) {
    check(updating_, "no update has begun{}; begin one first", dropped_);
    updating_ = false;
    const NamedTensors tensors = std::exchange(pending_, {});
    constexpr auto kNothing =
        "no tensor that the model uses has come since the update began; the weights are as before";
    if (!has_dummies()) return check(!tensors.empty() && apply(e, tensors, how), kNothing);
    check(sent_->checkpoint().bytes() > 0, kNothing);
    const SentTensors& state = sent_->state();
    check(state.complete(), "the weights are dummies, and {} of {} tensors have come; {} is missing", state.come,
          state.needed, io::quote(state.missing));
    replace_dummies(e, *sent_, how);
  });
}

// False: the model uses none of them, and nothing was done.
bool LiveEngine::apply(Engine& engine, const NamedTensors& tensors, const Replacement& how) {
  bool in_place = true;
  if (sent_)
    in_place = extend(engine, tensors, how);
  else
    put_in_place(engine, model::update_live_model(ctx_, options_, live_, tensors), how);
  const std::lock_guard lock(mutex_);
  for (const auto& [name, tensor] : tensors) awaited_.erase(name);
  let_go_if_complete();
  return in_place;
}

// A GPU need not have room for both.
void LiveEngine::replace_dummies(Engine& engine, const SentWeights& sent, const Replacement& how) {
  const bool alone = engine.metrics().running == 0;
  if (alone) {
    engine.drop_model();
    live_ = {nullptr, live_.source, nullptr};
  }
  const auto asked = std::make_shared<io::AskedNames>();
  try {
    put_in_place(engine, model::load_live_model(ctx_, sent.options(), sent.checkpoint(), asked), how);
  } catch (...) {
    if (alone) {
      set_released(true);
      live_ = model::load_live_model(ctx_, options_);
      engine.replace_model(*live_.model, Engine::InFlight::keep);
      set_released(false);
    }
    throw;
  }
  set_sent(sent.built(asked));
  const std::lock_guard lock(mutex_);
  awaited_.clear();  // `sent` has them all
  let_go_if_complete();
}

// Of a model that was sent: by tensors that it has, of which modules are shared, or by some that it can do without.
// False: by neither, only by those that it does not use.
bool LiveEngine::extend(Engine& engine, const NamedTensors& tensors, const Replacement& how) {
  SentWeights next = sent_->with(tensors);
  NamedTensors used;
  std::vector<std::string> changed;
  bool known = true;
  for (const auto& given : tensors) {
    if (!next.asked_for(given.first)) continue;
    known = known && live_.source.contains(given.first);
    changed.push_back(given.first);
    used.push_back(given);
  }
  if (known && !used.empty())
    put_in_place(engine,
                 model::update_live_model(ctx_, next.options(), live_, live_.source.extended(used), std::move(changed)),
                 how);
  if (!known) {
    const auto asked = std::make_shared<io::AskedNames>();
    put_in_place(engine, model::load_live_model(ctx_, next.options(), next.checkpoint(), asked), how);
    next = next.built(asked);
  }
  set_sent(std::move(next));
  return !used.empty();
}

void LiveEngine::check_update(const NamedTensors& tensors) const {
  std::optional<SentWeights> sent;
  io::Checkpoint source;
  {
    const std::lock_guard lock(mutex_);
    sent = sent_;
    source = source_;
  }
  if (sent)
    sent->check(tensors);
  else
    source.updated(tensors);
}

std::optional<SentTensors> LiveEngine::sent() const {
  const std::lock_guard lock(mutex_);
  return sent_ ? std::optional(sent_->state()) : std::nullopt;
}

void LiveEngine::set_released(bool weights) {
  const std::lock_guard lock(mutex_);
  released_.weights = weights;
}

void LiveEngine::set_sent(std::optional<SentWeights> sent) {
  const std::lock_guard lock(mutex_);
  sent_ = std::move(sent);
}

std::optional<SentWeights> LiveEngine::nothing_sent(const io::Checkpoint& configs) {
  if (!options_.dummy) return std::nullopt;
  return SentWeights(&ctx_, options_, configs, awaited_);
}

io::Checkpoint LiveEngine::weights() const {
  const std::lock_guard lock(mutex_);
  return source_;
}

void LiveEngine::check_available() const {
  const std::lock_guard lock(mutex_);
  if (released_.any())
    fail(ErrorCode::busy, "the memory of {} is released; resuming it brings it back",
         released_.weights && released_.kv_cache ? "weights and kv_cache"
         : released_.weights                     ? "weights"
                                                 : "kv_cache");
  if (awaited_.empty()) return;
  std::set<std::string> missing = awaited_;
  if (sent_) std::erase_if(missing, [&](const std::string& name) { return sent_->checkpoint().contains(name); });
  if (missing.empty())
    fail(ErrorCode::busy, "the {} tensors that came again after the weights were released are not in place yet",
         awaited_.size());
  fail(ErrorCode::busy,
       "{} tensors that were updated before the weights were released have not come again, the first of them {}",
       missing.size(), *missing.begin());
}

// With the mutex.
void LiveEngine::let_go_if_complete() {
  if (!released_.any() && awaited_.empty()) async_->release(AsyncEngine::Hold::released);
}

void LiveEngine::release_memory(MemoryTags tags) {
  if (!tags.any()) return;
  // First of all, so that no request begins in between; taken back if this fails.
  async_->hold(AsyncEngine::Hold::released);
  try {
    async_->run([&](Engine& e) {
      if (tags.kv_cache) {
        e.release_cache();
        const std::lock_guard lock(mutex_);
        released_.kv_cache = true;
      }
      if (!tags.weights || !e.has_model()) return;
      e.drop_model();
      const std::vector<std::string> lost = live_.source.updated_names();
      live_ = {nullptr, live_.source.without_updates(), nullptr};
      drop_update(": what had come for the last one was dropped when the weights were released");
      {
        const std::lock_guard lock(mutex_);
        source_ = live_.source;
        awaited_.insert(lost.begin(), lost.end());
        released_.weights = true;
      }
      set_sent(nothing_sent(live_.source));
      ::malloc_trim(0);
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
