// SPDX-License-Identifier: Apache-2.0
// The engine as a Backend, with the model that it runs and the way to load it again.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/context.h"
#include "engine/async_engine.h"
#include "model/model.h"
#include "server/backend.h"
#include "text/tokenizer.h"

namespace sluice::server {

class EngineBackend final : public Backend {
 public:
  using Loader = std::function<std::unique_ptr<model::Model>(const std::string& path)>;

  // `tokenizer` must live longer. `load` is called on the engine's thread by reload(). Throws as Engine's constructor.
  EngineBackend(const Context& ctx, std::unique_ptr<model::Model> model, const text::Tokenizer& tokenizer,
                const engine::EngineConfig& config, Loader load);
  ~EngineBackend() override;

  engine::RequestId submit(engine::Request request, engine::Sink sink) override;
  void cancel(engine::RequestId id) override;
  void cancel_all() override;
  void flush_cache() override;
  engine::Metrics metrics() const override;
  engine::Limits limits() const override;
  const engine::EngineConfig& config() const override;
  double stalled_seconds() const override;
  void reload(const std::string& path) override;
  bool drain(std::chrono::milliseconds timeout) override;
  void stop() override;

  int64_t cache_bytes() const { return cache_bytes_; }

 private:
  std::unique_ptr<model::Model> model_;  // the engine's thread replaces it
  Loader load_;
  int64_t cache_bytes_ = 0;
  std::unique_ptr<engine::AsyncEngine> engine_;
};

}  // namespace sluice::server
