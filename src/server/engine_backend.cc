// SPDX-License-Identifier: Apache-2.0
#include "server/engine_backend.h"

namespace sluice::server {

EngineBackend::EngineBackend(const Context& ctx, model::LiveModel model, model::LoadOptions loaded,
                             const text::Tokenizer& tokenizer, const engine::EngineConfig& config, Options options)
    : options_of_(std::move(options)), live_(ctx, std::move(model), std::move(loaded), &tokenizer, config) {}

engine::RequestId EngineBackend::submit(engine::Request request, engine::Sink sink) {
  return live_.submit(std::move(request), std::move(sink));
}
std::vector<engine::RequestId> EngineBackend::submit(std::vector<engine::Request> requests,
                                                     std::vector<engine::Sink> sinks) {
  return live_.submit(std::move(requests), std::move(sinks));
}
void EngineBackend::cancel(engine::RequestId id) { live_.async().cancel(id); }
void EngineBackend::cancel_all() {
  live_.async().run([](engine::Engine& e) { e.cancel_all(); });
}
void EngineBackend::flush_cache() {
  live_.async().run([](engine::Engine& e) { e.flush_cache(); });
}
void EngineBackend::publish_cache_events(engine::CacheEventSink sink) {
  live_.async().run([&](engine::Engine& e) { e.publish_cache_events(std::move(sink)); });
}
engine::Metrics EngineBackend::metrics() const { return live_.async().metrics(); }
engine::Limits EngineBackend::limits() const { return live_.async().limits(); }
const engine::EngineConfig& EngineBackend::config() const { return live_.async().config(); }
double EngineBackend::stalled_seconds() const { return live_.async().stalled_seconds(); }
std::string EngineBackend::fault() const { return live_.async().fault(); }

void EngineBackend::pause(engine::PauseMode mode) { live_.pause(mode); }
void EngineBackend::resume() { live_.resume(); }
bool EngineBackend::paused() const { return live_.paused(); }
void EngineBackend::reload(const std::string& path, const engine::Replacement& how) {
  live_.reload([&] { return options_of_(path); }, how);
}
void EngineBackend::update(const engine::NamedTensors& tensors, const engine::Replacement& how) {
  live_.update(tensors, how);
}
void EngineBackend::begin_update() { live_.begin_update(); }
void EngineBackend::end_update(const engine::Replacement& how) { live_.end_update(how); }
io::Checkpoint EngineBackend::weights() const { return live_.weights(); }
void EngineBackend::release_memory(engine::MemoryTags tags) { live_.release_memory(tags); }
void EngineBackend::resume_memory(engine::MemoryTags tags) { live_.resume_memory(tags); }

void EngineBackend::record_experts(bool on) {
  live_.async().run([on](engine::Engine& e) { e.record_experts(on); });
}
std::pair<bool, engine::ExpertCounts> EngineBackend::expert_counts() {
  std::pair<bool, engine::ExpertCounts> out;
  live_.async().run([&](engine::Engine& e) { out = {e.recording_experts(), e.expert_counts()}; });
  return out;
}
void EngineBackend::trace_steps(int64_t steps, std::function<void(const engine::StepTrace&)> trace) {
  live_.async().run([&](engine::Engine& e) { e.trace_steps(steps, std::move(trace)); });
}

bool EngineBackend::drain(std::chrono::milliseconds timeout) { return live_.async().drain(timeout); }
void EngineBackend::stop() { live_.async().stop(); }

}  // namespace sluice::server
