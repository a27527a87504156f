// SPDX-License-Identifier: Apache-2.0
// An EngineClient whose engine runs in this process, with the way to load its checkpoint again.
#pragma once

#include <functional>
#include <string>

#include "device/context.h"
#include "engine/live_engine.h"
#include "server/engine_client.h"
#include "text/tokenizer.h"

namespace sluice::server {

class InProcessEngine final : public EngineClient {
 public:
  // How the checkpoint in `path` is loaded.
  using Options = std::function<model::LoadOptions(const std::string& path)>;

  // `tokenizer` must live longer. `model` was loaded with `loaded`; `options` is called on the engine's thread by
  // reload(). Throws as Engine's constructor.
  InProcessEngine(const Context& ctx, model::LiveModel model, model::LoadOptions loaded,
                  const text::Tokenizer& tokenizer, const engine::EngineConfig& config, Options options);

  engine::RequestId submit(engine::Request request, engine::Sink sink) override;
  std::vector<engine::RequestId> submit(std::vector<engine::Request> requests,
                                        std::vector<engine::Sink> sinks) override;
  void cancel(engine::RequestId id) override;
  void cancel_all() override;
  void flush_cache() override;
  engine::Metrics metrics() const override;
  engine::Limits limits() const override;
  const engine::EngineConfig& config() const override;
  double stalled_seconds() const override;
  std::string fault() const override;
  void pause(engine::PauseMode mode) override;
  void resume() override;
  bool paused() const override;
  void reload(const std::string& path, const engine::Replacement& how) override;
  void update(const engine::NamedTensors& tensors, const engine::Replacement& how) override;
  void begin_update() override;
  void end_update(const engine::Replacement& how) override;
  void check_update(const engine::NamedTensors& tensors) const override;
  std::optional<engine::SentTensors> sent() const override;
  io::Checkpoint weights() const override;
  void release_memory(engine::MemoryTags tags) override;
  void resume_memory(engine::MemoryTags tags) override;
  void record_experts(bool on) override;
  std::pair<bool, engine::ExpertCounts> expert_counts() override;
  void trace_steps(int64_t steps, std::function<void(const engine::StepTrace&)> trace) override;
  bool drain(std::chrono::milliseconds timeout) override;
  void stop() override;

  // As engine::Engine's; before the first request.
  void publish_cache_events(engine::CacheEventSink sink);
  // As engine::AsyncEngine's.
  void on_fault(std::function<void()> then) { live_.async().on_fault(std::move(then)); }
  int64_t cache_bytes() const { return live_.cache_bytes(); }

 private:
  Options options_of_;
  engine::LiveEngine live_;
};

}  // namespace sluice::server
