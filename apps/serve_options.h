// SPDX-License-Identifier: Apache-2.0
// The options of `sluice serve`.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/engine_config.h"
#include "model_options.h"
#include "server/http/server.h"
#include "server/service.h"

namespace sluice::apps {

struct ServeOptions {
  ModelOptions model;
  SpeculativeOptions speculative;
  server::http::Options http;
  server::ServiceConfig service;
  engine::EngineConfig engine;
  std::vector<std::string> names;
  std::vector<std::string> habits;  // lines about options that need nothing done
  std::string chat_template, sampling_defaults = "model";
  std::optional<std::string> kv_events;
  std::optional<uint64_t> random_seed;
  bool deterministic = false, no_prefix_cache = false;
  int drain_seconds = 60;
};

void add_serve_options(CLI::App& command, ServeOptions& options);

}  // namespace sluice::apps
