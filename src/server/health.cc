// SPDX-License-Identifier: Apache-2.0
// GET /health: the server is there, its model is loaded, its engine moves. GET /health_generate: it makes a token.
#include <atomic>

#include "server/api_error.h"
#include "server/endpoints.h"
#include "server/json_out.h"

namespace sluice::server {

namespace {
constexpr double kStalled = 120;  // seconds in one step; prompts are cut into chunks, so steps are short
constexpr std::chrono::seconds kGenerateTimeout{20};

[[noreturn]] void unhealthy(const std::string& sentence) {
  throw ApiError(503, "unavailable_error", sentence, "", "unhealthy");
}

void require_motion(const EngineClient& engine) {
  if (const std::string fault = engine.fault(); !fault.empty()) unhealthy("the device has failed: " + fault);
  const double stalled = engine.stalled_seconds();
  if (stalled > kStalled) unhealthy(fmt::format("the engine has been in one step for {:.0f} s", stalled));
}

const char* const kOk = R"({"status":"ok"})";
}  // namespace

void health(Service& service, const ExchangePtr& exchange) {
  service.require_ready();
  require_motion(*service.engine());
  exchange->reply({.body = kOk});
}

void health_generate(Service& service, const ExchangePtr& exchange) {
  service.require_ready();
  const auto engine = service.engine();
  require_motion(*engine);
  if (engine->paused()) return exchange->reply({.body = R"({"status":"paused"})"});  // on purpose: no sickness
  engine::Request request;
  request.prompt = {0};
  request.params.max_tokens = 1;
  request.params.ignore_eos = true;
  const auto answered = std::make_shared<std::atomic<bool>>(false);
  engine::RequestId id = 0;
  try {
    id = engine->submit(std::move(request), [exchange, answered](const engine::Event& event) {
      if (event.reason == engine::FinishReason::none || answered->exchange(true)) return;
      if (event.reason == engine::FinishReason::error || event.reason == engine::FinishReason::cancelled ||
          event.reason == engine::FinishReason::timed_out)
        exchange->reply(error_response({503, "unavailable_error", "the engine made no token: " + event.error}));
      else
        exchange->reply({.body = kOk});
    });
  } catch (const Error& error) {
    if (error.code() != ErrorCode::busy) throw;
    exchange->reply({.body = kOk});  // a full queue before an engine that moves is health, not sickness
    return;
  }
  service.after(kGenerateTimeout, [exchange, answered, engine, id] {
    if (answered->exchange(true)) return;
    engine->cancel(id);
    exchange->reply(error_response(
        {503, "unavailable_error", fmt::format("the engine made no token in {} s", kGenerateTimeout.count())}));
  });
}

}  // namespace sluice::server
