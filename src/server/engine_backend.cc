// SPDX-License-Identifier: Apache-2.0
#include "server/engine_backend.h"

#include <malloc.h>

namespace sluice::server {

EngineBackend::EngineBackend(const Context& ctx, std::unique_ptr<model::Model> model, const text::Tokenizer& tokenizer,
                             const engine::EngineConfig& config, Loader load)
    : model_(std::move(model)), load_(std::move(load)) {
  auto engine = std::make_unique<engine::Engine>(ctx, *model_, &tokenizer, config);
  cache_bytes_ = engine->cache_bytes();
  engine_ = std::make_unique<engine::AsyncEngine>(std::move(engine));
}

EngineBackend::~EngineBackend() { engine_->stop(); }

engine::RequestId EngineBackend::submit(engine::Request request, engine::Sink sink) {
  return engine_->submit(std::move(request), std::move(sink));
}
void EngineBackend::cancel(engine::RequestId id) { engine_->cancel(id); }
void EngineBackend::cancel_all() {
  engine_->run([](engine::Engine& e) { e.cancel_all(); });
}
void EngineBackend::flush_cache() {
  engine_->run([](engine::Engine& e) { e.flush_cache(); });
}
engine::Metrics EngineBackend::metrics() const { return engine_->metrics(); }
engine::Limits EngineBackend::limits() const { return engine_->limits(); }
const engine::EngineConfig& EngineBackend::config() const { return engine_->config(); }
double EngineBackend::stalled_seconds() const { return engine_->stalled_seconds(); }

// On the engine's thread: the thread pool serves one caller at a time, and the model that runs needs it too. The old
// weights are given up only when the new ones are complete.
void EngineBackend::reload(const std::string& path) {
  engine_->run([&](engine::Engine& e) {
    std::unique_ptr<model::Model> next = load_(path);
    e.replace_model(*next);
    model_ = std::move(next);
    // The old weights' pages would stay with the process, up to a model's worth in holes: glibc keeps freed blocks of
    // up to 32 MB.
    ::malloc_trim(0);
  });
}

bool EngineBackend::drain(std::chrono::milliseconds timeout) { return engine_->drain(timeout); }
void EngineBackend::stop() { engine_->stop(); }

}  // namespace sluice::server
