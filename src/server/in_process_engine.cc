// SPDX-License-Identifier: Apache-2.0
#include "server/in_process_engine.h"

namespace sluice::server {

InProcessEngine::InProcessEngine(const Context& ctx, model::LiveModel model, model::LoadOptions loaded,
                                 const text::Tokenizer& tokenizer, const engine::EngineConfig& config, Options options)
    : options_of_(std::move(options)), live_(ctx, std::move(model), std::move(loaded), &tokenizer, config) {}

engine::RequestId InProcessEngine::submit(engine::Request request, engine::Sink sink) {
  return live_.submit(std::move(request), std::move(sink));
}
std::vector<engine::RequestId> InProcessEngine::submit(std::vector<engine::Request> requests,
                                                       std::vector<engine::Sink> sinks) {
  return live_.submit(std::move(requests), std::move(sinks));
}
void InProcessEngine::cancel(engine::RequestId id) { live_.async().cancel(id); }
void InProcessEngine::cancel_all() {
  live_.async().run([](engine::Engine& e) { e.cancel_all(); });
}
void InProcessEngine::flush_cache() {
  live_.async().run([](engine::Engine& e) { e.flush_cache(); });
}
void InProcessEngine::publish_cache_events(engine::CacheEventSink sink) {
  live_.async().run([&](engine::Engine& e) { e.publish_cache_events(std::move(sink)); });
}
engine::Metrics InProcessEngine::metrics() const { return live_.async().metrics(); }
engine::Limits InProcessEngine::limits() const { return live_.async().limits(); }
const engine::EngineConfig& InProcessEngine::config() const { return live_.async().config(); }
double InProcessEngine::stalled_seconds() const { return live_.async().stalled_seconds(); }
std::string InProcessEngine::fault() const { return live_.async().fault(); }

void InProcessEngine::pause(engine::PauseMode mode) { live_.pause(mode); }
void InProcessEngine::resume() { live_.resume(); }
bool InProcessEngine::paused() const { return live_.paused(); }
void InProcessEngine::reload(const std::string& path, const engine::Replacement& how) {
  live_.reload([&] { return options_of_(path); }, how);
}
void InProcessEngine::update(const engine::NamedTensors& tensors, const engine::Replacement& how) {
  live_.update(tensors, how);
}
void InProcessEngine::begin_update() { live_.begin_update(); }
void InProcessEngine::end_update(const engine::Replacement& how) { live_.end_update(how); }
void InProcessEngine::check_update(const engine::NamedTensors& tensors) const { live_.check_update(tensors); }
std::optional<engine::SentTensors> InProcessEngine::sent() const { return live_.sent(); }
io::Checkpoint InProcessEngine::weights() const { return live_.weights(); }
void InProcessEngine::release_memory(engine::MemoryTags tags) { live_.release_memory(tags); }
void InProcessEngine::resume_memory(engine::MemoryTags tags) { live_.resume_memory(tags); }

void InProcessEngine::record_experts(bool on) {
  live_.async().run([on](engine::Engine& e) { e.record_experts(on); });
}
std::pair<bool, engine::ExpertCounts> InProcessEngine::expert_counts() {
  std::pair<bool, engine::ExpertCounts> out;
  live_.async().run([&](engine::Engine& e) { out = {e.recording_experts(), e.expert_counts()}; });
  return out;
}
void InProcessEngine::trace_steps(int64_t steps, std::function<void(const engine::StepTrace&)> trace) {
  live_.async().run([&](engine::Engine& e) { e.trace_steps(steps, std::move(trace)); });
}

bool InProcessEngine::drain(std::chrono::milliseconds timeout) { return live_.async().drain(timeout); }
void InProcessEngine::stop() { live_.async().stop(); }

}  // namespace sluice::server
